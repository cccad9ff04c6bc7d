"""Primal-dual training, top to bottom: epochs of updates, validation, checkpoints, a verdict.

One update (Algorithm 1 of the paper), on B examples in any number of micro-batches and processes:

    f ← the mean loss of each layer                 one forward pass
    weights:  step down ∂J/∂weights                 J = f_L, the mean of f, or the Lagrangian
    λ:        step up g(f), onto λ ≥ 0              from the same f

J depends on the weights through f alone, so its gradient is Σ_l ∂J/∂f_l · ∇f_l. Knowing ∂J/∂f, each
micro-batch and each process can back-propagate its share of f by itself, and the shares add up to the step
of one large batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from safetensors.torch import save
from torch import Tensor

from cudt.data.batching import Batch, batches, n_batches, to_device, updates
from cudt.data.splits import Split
from cudt.method import feasibility
from cudt.method.measurement import Measurement
from cudt.models.assemble import TrainingProblem
from cudt.models.layer_losses import draw_noise, measure, measure_sigma
from cudt.noise.source import NoiseSource
from cudt.runs.info import BestEpoch, RunInfo, SigmaX, VerdictInfo
from cudt.runs.run import TABLES, Run
from cudt.training.display import Display, TrainingView
from cudt.utils import progress
from cudt.utils.errors import TrainingStoppedError, UserError
from cudt.utils.files import write_atomically
from cudt.utils.interrupt import StopRequest


@dataclass
class Progress:
    """Where a training stands; with weights, optimisers and generators, all that it takes to go on."""

    epoch: int = 0
    step: int = 0
    step_in_epoch: int = 0
    sigma_x: float = math.nan
    best: list[float] | None = None
    best_epoch: int = 0
    best_slack: list[float] = dataclasses.field(default_factory=list)


class Trainer:
    """Trains one run from wherever it stands to its end."""

    def __init__(self, run: Run, experiment: TrainingProblem, accelerator: Accelerator, display: Display) -> None:
        self.run = run
        self.settings = run.recipe.settings
        self.accelerator = accelerator
        self.display = display
        self.task = experiment.task
        self.objective = experiment.objective
        self.descent = experiment.descent
        self.layerwise = experiment.layerwise
        self.model = experiment.layerwise.model
        self.wrapped = accelerator.prepare(experiment.layerwise)
        self.optimizer = self._primal_optimizer()
        self.train_examples = self.task.examples("train")
        # What is wrong with these shows now, not after an epoch.
        self.task.examples("validation")
        self.batch_size = min(self.settings.training.batch_size, len(self.train_examples))
        self.updates_per_epoch = len(self.train_examples) // self.batch_size
        if self.batch_size < self.settings.training.accumulation * accelerator.num_processes:
            raise UserError(
                f"training.batch_size: {self.batch_size} examples cannot be split into "
                f"{self.settings.training.accumulation} micro-batches on {accelerator.num_processes} processes"
            )
        self.progress = Progress()
        self.history: list[tuple[Any, ...]] = []
        self.validation_losses: list[float] | None = None

    # ---------------------------------------------------------------- the loop

    def fit(self) -> None:
        """Train to the end, or to the next stop request; the same call goes on from there."""
        if self.run.last_checkpoint.is_file():
            self._resume()
        else:
            self.progress.sigma_x = self._measure_sigma()
        with StopRequest() as stop, self.display:
            while self.progress.epoch < self.settings.training.epochs:
                self.objective.warming_up = self._warming_up
                for indices in self._remaining_updates():
                    self.objective.draw(self._generator(self.progress.step))
                    f, grad_norm = self._update(indices)
                    self.progress.step += 1
                    self.progress.step_in_epoch += 1
                    self._log_update(f, grad_norm)
                    self._maybe_pause(stop)
                self._end_epoch()
        self._conclude()

    @property
    def _warming_up(self) -> bool:
        """Whether this epoch leaves the constraints off."""
        constrained = self.objective.is_constrained
        return constrained and self.progress.epoch < self.settings.descent.warmup_epochs

    def _remaining_updates(self) -> Iterator[np.ndarray[Any, Any]]:
        """The examples of each update left in this epoch; the order depends on seed and epoch alone."""
        generator = self._generator()
        group = self.settings.training.group_by_length
        lengths = [self.task.length(example) for example in self.train_examples] if group else None
        yield from updates(len(self.train_examples), self.batch_size, generator, lengths)[self.progress.step_in_epoch :]

    def _generator(self, *place: int) -> np.random.Generator:
        """Draws that depend on the seed and the place in training alone, whatever process or resumption asks."""
        # numpy takes [1] and [1, 0] for the same seed.
        return np.random.default_rng([self.settings.seed, self.progress.epoch, *(number + 1 for number in place)])

    def _update(self, indices: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor]:
        """One primal and one dual step; returns f and the norm of the primal gradient."""
        self.wrapped.train()
        micro_batches = self._micro_batches(indices)
        count = self._sum_over_processes(torch.stack([self._weights(batch).sum() for batch in micro_batches]).sum())
        gradient = self._gradient_before_losses(micro_batches, count)
        sums = []
        for number, batch in enumerate(micro_batches, 1):
            with contextlib.nullcontext() if number == len(micro_batches) else self.accelerator.no_sync(self.wrapped):
                partial = self._loss_sums(batch, gradient)
                if gradient is None:
                    gradient = self.objective.gradient(self._sum_over_processes(partial.detach()) / count)
                # Gradients are averaged over processes; the sum is wanted.
                share = self.accelerator.num_processes * (gradient @ partial) / count
                self.accelerator.backward(share)
            sums.append(partial.detach())
        f = self._sum_over_processes(torch.stack(sums).sum(0)) / count
        grad_norm = torch.as_tensor(
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.training.clip_norm or math.inf)
        )
        self._refuse_non_finite(f, grad_norm)
        self.objective.accumulate_slack_gradient(f)
        self.objective.dual_step(f)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.descent.project_slack()
        return f, grad_norm

    def _gradient_before_losses(self, micro_batches: list[Batch], count: Tensor) -> Tensor | None:
        """∂J/∂f, where it is known before the first backward pass; None where f is, by then, that of the whole batch.

        In the linear form it is the same at every f. In the log form it needs f of the whole batch, which costs a
        forward pass more if that is split. Dropout draws the same masks in that pass as in the one that follows.
        """
        if not self.objective.gradient_needs_losses:
            return self.objective.gradient(torch.ones(len(self.objective.layers), device=self.accelerator.device))
        if len(micro_batches) == 1:
            return None
        with torch.no_grad(), torch.random.fork_rng():
            sums = torch.stack([self._loss_sums(batch) for batch in micro_batches]).sum(0)
        return self.objective.gradient(self._sum_over_processes(sums) / count)

    def _micro_batches(self, indices: np.ndarray[Any, Any]) -> list[Batch]:
        """This process's share of an update, split for accumulation."""
        share = indices[self.accelerator.process_index :: self.accelerator.num_processes]
        parts = np.array_split(share, self.settings.training.accumulation)
        collated = (self.task.collate([self.train_examples[index] for index in part]) for part in parts)
        return [to_device(batch, self.accelerator.device) for batch in collated]

    def _loss_sums(self, batch: Batch, gradient: Tensor | None = None) -> Tensor:
        """Σ over the examples of a micro-batch of each layer's loss, on inputs perturbed at γ_train.

        Layers of weight 0 in ∂J/∂f (those that meet their constraints, say) are read, but not back-propagated.
        """
        gamma = self.settings.noise.gamma_train
        source = self._noise(f"train {self.settings.seed} {self.progress.epoch}")
        noise = gamma * draw_noise(self.model, batch, source) if gamma else None
        tokens, layers = self.settings.readout.tokens, self.objective.layers
        thinned = self.task.thinned(batch, tokens, source.seed) if tokens and layers != [self.model.n_layers] else None
        weights = [1.0] * len(layers) if gradient is None else gradient.tolist()
        # Never the last: processes that train together wait for the gradients of all weights, even if they are 0.
        constant = {layer for layer, weight in zip(layers[:-1], weights[:-1], strict=True) if not weight}
        losses = self.wrapped(batch, noise, layers, thinned, constant)
        return losses @ self._weights(batch)

    def _weights(self, batch: Batch) -> Tensor:
        return self.task.weights(batch).to(self.accelerator.device)

    def _noise(self, seed: str) -> NoiseSource:
        return NoiseSource(self.settings.noise.kind, self.progress.sigma_x, seed)

    def _sum_over_processes(self, values: Tensor) -> Tensor:
        return self.accelerator.reduce(values, reduction="sum")

    def _refuse_non_finite(self, f: Tensor, grad_norm: Tensor) -> None:
        if bool(torch.isfinite(f).all() & torch.isfinite(grad_norm)):
            return
        bad = [layer for layer, loss in zip(self.objective.layers, f.tolist(), strict=True) if not math.isfinite(loss)]
        what = f"the loss of layer {bad[0]}" if bad else "the gradient"
        raise TrainingStoppedError(
            f"update {self.progress.step + 1}: {what} is not finite; nothing was updated. "
            "Lower training.learning_rate or descent.dual.learning_rate, or set training.clip_norm"
        )

    def _primal_optimizer(self) -> torch.optim.Optimizer:
        training = self.settings.training
        groups: list[dict[str, Any]] = [
            {
                "params": [weight for weight in self.model.parameters() if weight.requires_grad],
                "weight_decay": training.weight_decay,
            }
        ]
        if slack := list(self.descent.slack_parameters()):
            groups.append({"params": slack, "weight_decay": 0.0})
        kind = torch.optim.AdamW if training.optimizer == "adamw" else torch.optim.Adam
        return kind(groups, lr=training.learning_rate)

    # ---------------------------------------------------------------- the end of an epoch, and of a run

    def _end_epoch(self) -> None:
        # Validation may want more memory than training; with a smaller evaluation.batch_size the run goes on from here.
        self._save()
        measured = self._validate()
        slack = self.descent.slack_in_loss_units(measured.layer_losses)
        verdicts = feasibility.judge(measured, self.descent.reference, self.descent.rates, slack)
        self._log_validation(measured)
        # A constrained run is best where it keeps its constraints; among those, where it ends lowest.
        badness = feasibility.badness(verdicts) if self.objective.is_constrained else []
        rank = [float(self._warming_up), *badness, measured.layer_losses[-1].item()]
        if self.progress.best is None or rank < self.progress.best:
            self.progress.best, self.progress.best_epoch = rank, self.progress.epoch + 1
            self.progress.best_slack = slack.tolist()
            self._save_best()
        if self.settings.descent.slack_restart:
            self.descent.restart_slack()
        self.progress.epoch += 1
        self.progress.step_in_epoch = 0
        self._save()

    def _validate(self) -> Measurement:
        """Validation data at γ_train, shared out over the processes; the noise is the same every time."""
        mine = itertools.islice(
            self._split("validation"), self.accelerator.process_index, None, self.accelerator.num_processes
        )
        gammas = [self.settings.noise.gamma_train]
        parts = [measure(self.layerwise, [batch], self._noise("validation"), gammas)[0] for batch in mine]
        return Measurement.joined(gather_object(parts))

    def _conclude(self) -> None:
        """Judge the best weights on validation data and close the run."""
        self.accelerator.wait_for_everyone()
        self.layerwise.load_learned_weights(self.run.load_best_weights())
        measured = self._validate()
        slack = torch.tensor(self.progress.best_slack, dtype=torch.double)
        verdicts = feasibility.judge(measured, self.descent.reference, self.descent.rates, slack)
        sigma_x = self._measure_sigma() if self.model.signal_is_learned else self.progress.sigma_x
        if not self.accelerator.is_main_process:
            return
        layers = pd.DataFrame(
            {
                "split": "validation",
                "perturbation": self.settings.noise.kind,
                "gamma": self.settings.noise.gamma_train,
                "layer": range(1, self.model.n_layers + 1),
                "loss": measured.layer_losses.tolist(),
                "metric": [self.task.metric(score) for score in measured.layer_scores.tolist()],
            }
        )
        self.run.merge_table("layers", layers, ["split"])
        self.run.update_info(
            RunInfo(
                status="finished",
                best=BestEpoch(epoch=self.progress.best_epoch, validation_loss=measured.layer_losses[-1].item()),
                sigma_x=SigmaX(training=self.progress.sigma_x, evaluation=sigma_x),
                feasible=feasibility.is_feasible(verdicts),
                monotone=feasibility.is_monotone(self.descent.reference, measured.layer_losses.tolist()),
                verdicts=[VerdictInfo(**dataclasses.asdict(one), verdict=one.verdict) for one in verdicts],
                multipliers=self.descent.multiplier_values.tolist(),
            )
        )

    def _measure_sigma(self) -> float:
        total = n_batches(self.train_examples, self.settings.evaluation.batch_size)
        return measure_sigma(self.model, progress.track(self._split("train"), total, "measuring σ_x"))

    def _split(self, split: Split) -> Iterator[Batch]:
        examples = self.task.examples(split)
        return batches(self.task, examples, self.settings.evaluation.batch_size, self.accelerator.device)

    # ---------------------------------------------------------------- what is seen

    def _log_update(self, f: Tensor, grad_norm: Tensor) -> None:
        if self.progress.step % self.settings.training.log_every:
            return
        self._record("train", self.objective.layers, {"loss": f.tolist()})
        if self.objective.constrains:
            self._record("train", self.objective.constraints, {"violation": self.objective.violations(f).tolist()})
            dual = {"multiplier": self.descent.multiplier_values.tolist(), "slack": self.descent.slack.tolist()}
            self._record("train", range(1, self.model.n_layers + 1), dual)
        self._record("train", [0], {"gradient_norm": [grad_norm.item()]})
        self.display.update(self._view(f))

    def _log_validation(self, measured: Measurement) -> None:
        self.validation_losses = measured.layer_losses.tolist()
        metrics = [self.task.metric(score) for score in measured.layer_scores.tolist()]
        layers = list(range(1, self.model.n_layers + 1))
        self._record("validation", layers, {"loss": self.validation_losses, self.task.metric_name: metrics})
        self.display.epoch_ended(self._view(None), f"{self.task.metric_name} {metrics[-1]:.4g}")

    def _record(self, split: str, layers: Sequence[int], values: dict[str, list[float]]) -> None:
        """Rows of history.csv; layer 0 stands for the whole model."""
        place = (self.progress.step, self.progress.epoch + 1, split)
        for name, row in values.items():
            self.history += [(*place, layer, name, value) for layer, value in zip(layers, row, strict=True)]

    def _view(self, f: Tensor | None) -> TrainingView:
        return TrainingView(
            title=f"{self.run.recipe.name} · {self.objective.name} · seed {self.settings.seed}",
            step=self.progress.step,
            steps=self.settings.training.epochs * self.updates_per_epoch,
            epoch=self.progress.epoch + 1,
            epochs=self.settings.training.epochs,
            reference=self.descent.reference,
            rates=self.descent.rates,
            warming_up=self._warming_up,
            train_losses=dict(zip(self.objective.layers, f.tolist(), strict=True)) if f is not None else {},
            validation_losses=self.validation_losses,
            multipliers=self.descent.multiplier_values.tolist() if self.objective.is_constrained else None,
        )

    # ---------------------------------------------------------------- going on

    def _maybe_pause(self, stop: StopRequest) -> None:
        every = self.settings.training.checkpoint_every
        stopping = self._in_any_process(stop.requested)
        if stopping or (every and self.progress.step_in_epoch % every == 0):
            self._save()
        if stopping:
            raise KeyboardInterrupt

    def _in_any_process(self, flag: bool) -> bool:
        """All processes stop after the same update, whichever of them was asked to."""
        if self.accelerator.num_processes == 1:
            return flag
        return bool(self._sum_over_processes(torch.tensor(float(flag), device=self.accelerator.device)).item())

    def _save_best(self) -> None:
        if self.accelerator.is_main_process:
            weights = {name: value.contiguous() for name, value in self.layerwise.learned_weights().items()}
            write_atomically(self.run.best_weights, lambda file: file.write(save(weights)))

    def _save(self) -> None:
        """Everything that `_resume` needs, history first: what is ahead of the checkpoint is cut off again."""
        if not self.accelerator.is_main_process:
            return
        self.run.write_table("history", pd.DataFrame(self.history, columns=TABLES["history"]))
        state = {
            "progress": dataclasses.asdict(self.progress),
            "validation_losses": self.validation_losses,
            "weights": self.layerwise.learned_weights(),
            "optimizer": self.optimizer.state_dict(),
            "descent": self.descent.state_dict(),
            "history_length": len(self.history),
            "generator": torch.get_rng_state(),
            "cuda_generator": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        }
        write_atomically(self.run.last_checkpoint, lambda file: torch.save(state, file))

    def _resume(self) -> None:
        state = self.run.load_last_checkpoint()
        self.progress = Progress(**state["progress"])
        self.validation_losses = state["validation_losses"]
        self.layerwise.load_learned_weights(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.descent.load_state_dict(state["descent"])
        torch.set_rng_state(state["generator"])
        if state["cuda_generator"] is not None and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda_generator"])
        history = self.run.read_table("history").head(state["history_length"])
        self.history = list(history.itertuples(index=False, name=None))
