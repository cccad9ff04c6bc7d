"""Layerwise descent in `transformers.Trainer`, for any model of transformers that has a head:

    trainer = DescentTrainer(model, args, train_dataset=…, eval_dataset=…,
                             descent=Descent(alpha=0.1))
    trainer.train()
    trainer.verdicts           # which layers meet their constraints on eval_dataset

The model's own head reads every layer (layers.py). One update, on any number of micro-batches and
processes:

    f ← the mean loss of each layer       Trainer's own loss, from one forward pass
    weights:  step down ∂J/∂weights       J = f_L, the mean of f, or the Lagrangian
    λ:        step up g(f), onto λ ≥ 0    from the same f, before the step of the weights

`DescentMixin` does the same for subclasses of Trainer; put it first among the bases:

    class DescentSFTTrainer(DescentMixin, trl.SFTTrainer): ...
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cudt.config.schema import Descent, Noise
from cudt.integrations import verdict
from cudt.integrations.layers import Inputs, LayerReader, n_labels, targets, with_some_label
from cudt.integrations.noise import InputNoise, measured_sigma
from cudt.integrations.update import DescentUpdate
from cudt.method.constraints import LayerVerdict
from cudt.method.descent import LayerwiseDescent, descent_of
from cudt.method.objectives import Objective, make_objective
from cudt.models.own_head import unwrapped
from cudt.tasks.base import IGNORED
from cudt.utils.device import survive_torchvision_mismatch
from cudt.utils.errors import UserError

survive_torchvision_mismatch()
from transformers import Trainer, TrainerCallback  # noqa: E402  (after what lets it be imported)
from transformers.models.auto import modeling_auto  # noqa: E402  (the same)

if TYPE_CHECKING:
    from transformers import Trainer as _Base
else:
    _Base = object

__all__ = ["Descent", "DescentMixin", "DescentTrainer", "Noise"]

#: The resilience of constraints, unless the settings say otherwise. Where a layer misses its
#: constraint by v, λ settles at 10·v: at 0.7 for a binary classifier (α = 0.1, f_0 = log 2) that
#: does not learn.
_RESILIENT = {"resilience": "decay", "beta": 10.0}
#: In a checkpoint of Trainer.
_FILE = "descent.pt"
_CAUSAL = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


class DescentMixin(_Base):
    """Layerwise descent for Trainer and its subclasses.

    `descent` and `noise` are the sections of a recipe, but constraints are resilient unless
    `descent` sets `resilience`, with `decay` and β = 10. `objective` is constrained, supervised or
    erm, or the import path of your own; with erm the update is Trainer's.
    """

    #: The loss of a micro-batch is divided by the labels of the whole update, whatever the model
    #: does with `num_items_in_batch`: many heads take it and ignore it.
    loss_is_scaled_for_ga = True
    #: Made together with the optimizer.
    _objective: Objective
    _update: DescentUpdate

    def __init__(
        self,
        *args: Any,
        descent: Descent | None = None,
        objective: str = "constrained",
        noise: Noise | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        is_split = self.is_fsdp_enabled or self.is_fsdp_xla_enabled or self.is_deepspeed_enabled
        if self.args.n_gpu > 1 or is_split:
            raise UserError(
                "layerwise descent needs whole weights, and a process for each GPU: start the "
                "program with `accelerate launch` or torchrun, without FSDP and DeepSpeed"
            )
        self.settings, noise = descent or Descent(), noise or Noise()
        if "resilience" not in self.settings.model_fields_set:
            self.settings = self.settings.model_copy(update=_RESILIENT)
        self.noise = InputNoise(noise.kind, noise.gamma_train)
        self.verdicts: list[LayerVerdict] = []
        self._objective_name = objective
        self._logged: list[Tensor] = []
        self.add_callback(_Steps(self))

    @property
    def descent(self) -> LayerwiseDescent:
        """The constraints, with λ and slack; `train` makes them."""
        if not hasattr(self, "_objective"):
            raise UserError("the constraints are made by train(); call it first")
        return self._objective.descent

    # ---------------------------------------------------------------- one update

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> Any:
        """The micro-batches of an update, which begins here."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        objective, shifted = self._objective, self._shifts_labels
        is_early = (self.state.epoch or 0.0) < self.settings.warmup_epochs
        objective.warming_up = objective.is_constrained and is_early
        self._update = DescentUpdate(objective, self.accelerator, batches, shifted=shifted)
        return batches, None

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Inputs,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """A micro-batch's share of J, up to a constant; in evaluation, Trainer's loss."""
        if not model.training or return_outputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        losses = self._losses(model, inputs, self._training_seed, weights=self._update.weights)
        return self._update.share(losses, inputs)

    def _losses(
        self,
        model: nn.Module,
        inputs: Inputs,
        seed: str,
        layers: Sequence[int] | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """The mean losses of layers on a noisy batch, by default those that the objective reads."""
        inputs = with_some_label(inputs, shifted=self._shifts_labels)
        loss = functools.partial(super().compute_loss, num_items_in_batch=None)
        chosen = self._objective.layers if layers is None else layers
        with self.noise.on(self.model, inputs, seed) as noisy:
            return self._reader.losses(model, noisy, loss, chosen, weights)

    @property
    def _training_seed(self) -> str:
        return f"train {self.args.seed} {int(self.state.epoch or 0)}"

    def dual_step(self) -> None:
        """Move λ, and give the slack its gradient; before the step of the weights."""
        f = self._update.mean()
        self._logged.append(f)
        self.descent.zero_grad()  # Trainer forgets only the gradients of the model
        self._objective.accumulate_slack_gradient(f)
        self._objective.dual_step(f)

    # ---------------------------------------------------------------- what an update needs

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """Trainer's optimizer, which also trains the slack if there is one."""
        is_new = self.optimizer is None or not hasattr(self, "_objective")
        optimizer = super().create_optimizer(model)
        if is_new:
            self._objective = self._make_objective()
            self.descent.add_slack_to(optimizer)
        return optimizer

    def _make_objective(self) -> Objective:
        # Label smoothing and losses of the user's are not computed in chunks.
        is_plain = self.label_smoother is None and self.compute_loss_func is None
        is_plain &= getattr(self.args, "loss_type", "nll") == "nll"  # TRL has others
        train = self.train_dataset
        self._reader = LayerReader(
            self.model,
            self._prepare_inputs(next(self._in_order(train))),
            in_chunks=is_plain and self._shifts_labels,
        )
        reference = self.settings.reference
        # Anew: that of a training before was of another model.
        self.noise.sigma_x = None
        if self.noise.gamma:
            self.noise.sigma_x = measured_sigma(self.model, self._in_order(train))
        if reference == "auto":
            reference = label_entropy(self._in_order(train), shifted=self._shifts_labels)
        descent = descent_of(self.settings, self._reader.n_layers, reference)
        return make_objective(self._objective_name, descent)

    @property
    def _shifts_labels(self) -> bool:
        """Whether the loss compares a position with the label of the next one."""
        # Trainer knows it by the name of the loss, which some models (GPT-2) do not have.
        return self._loss_shifts_labels or type(unwrapped(self.model)).__name__ in _CAUSAL.values()

    def _in_order(self, dataset: Any, size: int | None = None) -> Iterator[Inputs]:
        """The batches of a data set in order, all of them in every process, on the CPU."""
        collate = self._get_collator_with_removed_columns(self.data_collator)
        size = size or self.args.eval_batch_size
        # Collators draw on the CPU.
        with torch.random.fork_rng([]):
            yield from torch.utils.data.DataLoader(dataset, size, collate_fn=collate)

    # ---------------------------------------------------------------- logs and checkpoints

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Trainer's log, with losses, violations, λ, slack and w_l of the layers in the last
        update. `loss` is the mean f_L; `objective` is what was minimised.
        """
        if "loss" in logs and self._logged:
            updates, self._logged = torch.stack(self._logged), []
            mean = {"loss": updates[:, -1].double().mean().item()}
            if self._objective.reads_all_layers:
                mean |= {"objective": logs["loss"]}
                mean |= verdict.update_log(self._objective, updates[-1])
            logs = {**logs, **mean}
        super().log(logs, start_time)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            state = {"descent": self.descent.state_dict(), "sigma_x": self.noise.sigma_x}
            torch.save(state, Path(output_dir) / _FILE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            sigma_x = self._load_descent(checkpoint)
            self.noise.sigma_x = sigma_x or self.noise.sigma_x  # None if trained without noise

    def _load_best_model(self) -> None:
        super()._load_best_model()
        # The verdict is about the best weights, so it needs the slack that they were trained with.
        if not self.args.save_only_model:
            self._load_descent(self.state.best_model_checkpoint or "")

    def _load_descent(self, checkpoint: str) -> float | None:
        """Load λ, slack and the dual optimiser, and return σ_x."""
        state = torch.load(Path(checkpoint) / _FILE, map_location="cpu", weights_only=True)
        self.descent.load_state_dict(state["descent"])
        return state["sigma_x"]

    # ---------------------------------------------------------------- the verdict

    @torch.no_grad()
    def judge(self, dataset: Any = None) -> list[LayerVerdict]:
        """The verdict about each layer's constraint on a data set, by default eval_dataset, at
        noise γ_train, one example at a time.
        """
        dataset = self.eval_dataset if dataset is None else dataset
        if dataset is None or isinstance(dataset, dict):
            raise UserError("judge: eval_dataset is missing or has several; give one data set")
        layers, losses, weights = range(1, self.descent.n_layers + 1), [], []
        self.model.eval()
        for batch in self._in_order(dataset, 1):
            inputs = self._prepare_inputs(batch)
            losses.append(self._losses(self.model, inputs, "validation", layers))
            weights.append(n_labels(inputs, shifted=self._shifts_labels))
        self.verdicts = verdict.judge(self.descent, torch.stack(losses, 1), torch.stack(weights))
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
        if self._trainer.settings.slack_restart and not self._is_within_epoch:
            self._trainer.descent.restart_slack()
        self._is_within_epoch = False

    def on_train_end(self, *_: Any, **__: Any) -> None:
        trainer = self._trainer
        if trainer.eval_dataset is None or isinstance(trainer.eval_dataset, dict):
            return
        verdicts, reference = trainer.judge(), trainer.descent.reference
        trainer.log(verdict.verdict_log(verdicts, reference))
        if trainer.is_world_process_zero():
            verdict.show(verdicts, reference)


def label_entropy(batches: Iterator[Inputs], *, shifted: bool) -> float:
    """The entropy of the labels: the loss of the best answer that ignores its input."""
    counts = Counter[int]()
    for batch in batches:
        labels = targets(batch, shifted=shifted)
        if labels.is_floating_point():
            raise UserError(
                "descent.reference: 'auto' is the entropy of the classes, and the labels of the "
                "training data are no classes; set it to a loss that is easy to reach"
            )
        values, numbers = labels[labels != IGNORED].unique(return_counts=True)
        counts.update(dict(zip(values.tolist(), numbers.tolist(), strict=True)))
    shares = [count / counts.total() for count in counts.values()]
    return sum(-share * math.log(share) for share in shares)
