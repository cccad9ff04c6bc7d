"""Layerwise descent in `transformers.Trainer`, for any model of transformers that has a head:

    trainer = DescentTrainer(model=model, args=args, train_dataset=…, eval_dataset=…, descent=Descent(alpha=0.1))
    trainer.train()
    trainer.verdicts                      # which layers meet their constraints on eval_dataset

The model's own head reads every layer (models/own_head.py). One update, on any number of
micro-batches and processes:

    f ← the mean loss of each layer       Trainer's own loss, from one forward pass
    weights:  step down ∂J/∂weights       J = f_L, the mean of f, or the Lagrangian
    λ:        step up g(f), onto λ ≥ 0    from the same f, between the backward pass and the step of the weights

`DescentMixin` does the same for subclasses of Trainer, such as TRL's `SFTTrainer`: put it first
among the bases.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cudt.config.schema import Descent, Noise
from cudt.integrations import descent_state, descent_verdict
from cudt.integrations.descent_problem import DescentProblem, reference_of
from cudt.integrations.descent_update import DescentUpdate
from cudt.integrations.input_noise import InputNoise, Inputs, measured_sigma
from cudt.integrations.layer_reader import LayerReader, with_some_label
from cudt.method.constraints import LayerVerdict
from cudt.models.own_head import unwrapped
from cudt.utils.compat import survive_torchvision_mismatch
from cudt.utils.errors import UserError

survive_torchvision_mismatch()
from transformers import Trainer, TrainerCallback  # noqa: E402  (after what lets it be imported)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: E402  (the same)

__all__ = ["Descent", "DescentMixin", "DescentTrainer", "Noise"]

if TYPE_CHECKING:
    from transformers import Trainer as _Base
else:
    _Base = object


class DescentMixin(_Base):
    """Layerwise descent for Trainer and its subclasses.

    `descent` and `noise` are the sections of a recipe; `objective` is constrained, supervised or
    erm, or the import path of your own. With erm the update is Trainer's.
    """

    #: The loss of a micro-batch is divided by the labels of the whole update, whatever the model
    #: does with `num_items_in_batch`: many heads take it and ignore it.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        *args: Any,
        descent: Descent | None = None,
        objective: str = "constrained",
        noise: Noise | None = None,
        **options: Any,
    ) -> None:
        if not hasattr(Trainer, "loss_is_scaled_for_ga"):
            raise UserError("DescentTrainer needs transformers 5.19 or newer; upgrade transformers")
        super().__init__(*args, **options)
        self._check_supported()
        self.descent_settings = descent or Descent()
        self.objective_name = objective
        noise = noise or Noise()
        self.noise = InputNoise(noise.kind, noise.gamma_train)
        self.problem: DescentProblem | None = None
        self.update: DescentUpdate | None = None
        self._not_seen: list[Inputs] = []
        self.verdicts: list[LayerVerdict] = []
        self.add_callback(_Steps(self))

    def _check_supported(self) -> None:
        if self.args.n_gpu > 1:
            raise UserError(
                "layerwise descent needs a process for each GPU; start the program with "
                "`accelerate launch` or torchrun"
            )
        splits = {
            "FSDP": self.is_fsdp_enabled or self.is_fsdp_xla_enabled,
            "DeepSpeed": self.is_deepspeed_enabled,
        }
        if name := next((name for name, is_on in splits.items() if is_on), None):
            raise UserError(
                f"layerwise descent does not support {name}: the head reads every layer from "
                "whole weights; remove it "
                "from TrainingArguments and from accelerate's configuration"
            )

    # ---------------------------------------------------------------- one update

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> Any:
        """The micro-batches of an update, which begins here."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        problem = self._known_problem()
        problem.objective.warming_up = problem.is_warming_up(self.state.epoch or 0.0)
        self.update = DescentUpdate(
            problem.objective, self.accelerator, batches, shifted=self._shifts_labels
        )
        # Not now: a resumed training restores its random state only after this.
        self._not_seen = (
            batches if len(batches) > 1 and problem.objective.gradient_needs_losses else []
        )
        return batches, None

    def _look_ahead(self, batches: list[Inputs]) -> None:
        """In the log form ∂J/∂f needs f of the whole update, which takes a second forward pass if
        that is split.
        """
        assert self.update is not None
        self.model.train()
        device = self.args.device
        with torch.no_grad(), torch.random.fork_rng([] if device.type == "cpu" else [device]):
            for batch in batches:
                inputs = self._prepare_inputs(batch)
                self.update.preview(self._layer_losses(self.model, inputs, None), inputs)
        self.update.end_preview()

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Inputs,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """A micro-batch's share of J, up to a number that the weights do not change; in evaluation,
        Trainer's loss.
        """
        if not model.training or return_outputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        assert self.update is not None, "an update begins with `get_batch_samples`"
        if self._not_seen:
            self._look_ahead(self._not_seen)
            self._not_seen = []
        losses = self._layer_losses(model, inputs, self.update.weights)
        return self.update.share(losses, inputs)

    def _layer_losses(self, model: nn.Module, inputs: Inputs, weights: Tensor | None) -> Tensor:
        problem, inputs = (
            self._known_problem(),
            with_some_label(inputs, shifted=self._shifts_labels),
        )
        loss = functools.partial(super().compute_loss, num_items_in_batch=None)
        with self.noise.on(
            self.model, inputs, f"train {self.args.seed} {int(self.state.epoch or 0)}"
        ) as noisy:
            return problem.reader.losses(model, noisy, loss, problem.objective.layers, weights)

    def dual_step(self) -> None:
        """Move λ, and give the slack its gradient; between the backward pass and the step of the
        weights.
        """
        assert self.update is not None
        problem, f = self._known_problem(), self.update.end()
        problem.note(f)
        for slack in problem.descent.slack_parameters():
            # Trainer forgets only the gradients of the model.
            slack.grad = None
        problem.objective.accumulate_slack_gradient(f)
        problem.objective.dual_step(f)

    # ---------------------------------------------------------------- what an update needs

    def _known_problem(self) -> DescentProblem:
        assert self.problem is not None, "made together with the optimizer"
        return self.problem

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """Trainer's optimizer, which also trains the slack if there is one."""
        is_new = self.optimizer is None or self.problem is None
        if is_new and self.descent_settings.resilience == "slack" and self.lr_scheduler is not None:
            raise UserError(
                "optimizers: a scheduler that exists before the slack cannot schedule it; give "
                "optimizers=(optimizer, "
                "None) and lr_scheduler_type, or use resilience='decay'"
            )
        optimizer = super().create_optimizer(*([] if model is None else [model]))
        if is_new:
            self.problem = self._make_problem()
            self.problem.descent.add_slack_to(optimizer)
        return optimizer

    @property
    def _shifts_labels(self) -> bool:
        """Whether the loss compares a position with the label of the next one, as causal language
        models do.
        """
        # Trainer knows it by the name of the loss, which some models (GPT-2) do not have.
        known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        return self._loss_shifts_labels or type(unwrapped(self.model)).__name__ in known

    def _make_problem(self) -> DescentProblem:
        # Label smoothing and losses of the user's are not computed in chunks.
        is_plain = self.label_smoother is None and self.compute_loss_func is None
        shifted = self._shifts_labels
        reader = LayerReader(
            self.model, self.accelerator.autocast, shifted=shifted, in_chunks=is_plain and shifted
        )
        batches = self._batches_to_measure
        # Anew: that of a training before was of another model.
        self.noise.sigma_x = measured_sigma(self.model, batches()) if self.noise.gamma else None
        reference = reference_of(self.descent_settings, batches, shifted=shifted)
        return DescentProblem(self.descent_settings, self.objective_name, reader, reference)

    def _batches_to_measure(self) -> Iterator[Inputs]:
        if not hasattr(self.train_dataset, "__len__"):
            raise UserError(
                "a data set without a length cannot be measured; set descent.reference to a "
                "number and gamma_train to 0"
            )
        return self.plain_batches(self.train_dataset)

    def plain_batches(self, dataset: Any) -> Iterator[Inputs]:
        """The batches of a data set in order, all of them in every process, on the CPU."""
        import datasets

        collate = self.data_collator
        if isinstance(dataset, datasets.Dataset):
            dataset = self._remove_unused_columns(dataset)
        else:
            collate = self._get_collator_with_removed_columns(collate)
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=self.args.eval_batch_size, collate_fn=collate
        )
        # Collators draw on the CPU.
        with torch.random.fork_rng([]):
            yield from loader

    # ---------------------------------------------------------------- logs, checkpoints, the
    # verdict

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Trainer's log, with losses, violations, λ, slack and w_l of the layers in the last
        update.

        `loss` is f_L, which compares with training without constraints; `objective` is what was
        minimised.
        """
        if "loss" in logs and self.problem is not None:
            logs = {**logs, **self.problem.logged(logs["loss"])}
        super().log(logs, start_time)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            descent_state.save(Path(output_dir), self._known_problem().descent, self.noise.sigma_x)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            sigma_x = descent_state.load(Path(checkpoint), self._known_problem().descent)
            # None in checkpoints without noise.
            self.noise.sigma_x = sigma_x or self.noise.sigma_x

    def _load_best_model(self) -> None:
        super()._load_best_model()
        # The verdict is about the best weights, so it needs the slack that they were trained with.
        best, descent = Path(self.state.best_model_checkpoint or ""), self._known_problem().descent
        if not self.args.save_only_model:
            descent_state.load(best, descent)

    @torch.no_grad()
    def judge(self, dataset: Any = None) -> list[LayerVerdict]:
        """The verdict about each layer's constraint on a data set, by default eval_dataset, at
        noise γ_train.
        """
        dataset = self.eval_dataset if dataset is None else dataset
        if self.problem is None:
            raise UserError("judge: the constraints are made by train(); call it first")
        if dataset is None or isinstance(dataset, dict):
            raise UserError(
                "judge: eval_dataset is missing, or several data sets; give judge one data set"
            )
        problem = self.problem
        self.model.eval()
        loss = functools.partial(super().compute_loss, num_items_in_batch=None)

        def measured() -> Iterator[tuple[Tensor, Tensor]]:
            for batch in self.plain_batches(dataset):
                inputs = self._prepare_inputs(batch)
                with self.noise.on(self.model, inputs, "validation") as noisy:
                    yield problem.reader.example_losses(noisy, loss)

        self.verdicts = descent_verdict.judge(problem.descent, measured())
        return self.verdicts


class DescentTrainer(DescentMixin, Trainer):
    """`transformers.Trainer` with layerwise descent: `descent=Descent(alpha=…)`."""


class _Steps(TrainerCallback):
    """What happens between the steps of Trainer's loop."""

    def __init__(self, trainer: DescentMixin) -> None:
        self._trainer = trainer
        self._is_within_epoch = False

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._trainer.dual_step()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._is_within_epoch = not float(state.epoch or 0).is_integer()

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        # Not at the end of an epoch: the verdict says which constraints the slack relaxes. Not if a
        # resumed training begins within an epoch.
        if self._trainer.descent_settings.slack_restart and not self._is_within_epoch:
            self._descent.restart_slack()
        self._is_within_epoch = False

    def on_train_end(self, *_: Any, **__: Any) -> None:
        trainer = self._trainer
        if trainer.eval_dataset is None or isinstance(trainer.eval_dataset, dict):
            return
        verdicts = trainer.judge()
        trainer.log(descent_verdict.logged(verdicts, self._descent.reference))
        if trainer.is_world_process_zero():
            descent_verdict.show(verdicts, self._descent.reference)

    @property
    def _descent(self) -> Any:
        assert self._trainer.problem is not None
        return self._trainer.problem.descent
