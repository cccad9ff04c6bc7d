"""The training loop, from top to bottom: epochs of updates, validation, the best weights,
checkpoints.

One update (Algorithm 1 of the paper), on B examples in any number of micro-batches and processes:

    f ← the mean loss of each layer                 one forward pass
    weights:  step down ∂J/∂weights                 J = f_L, the mean of f, or the Lagrangian
    λ:        step up g(f), onto λ ≥ 0              from the same f

J depends on the weights only through f, so its gradient is Σ_l ∂J/∂f_l · ∇f_l. Once ∂J/∂f is known,
every micro-batch and every process can back-propagate its share of f separately, and the shares add
up to the step of one large batch.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from cudt.data.loader import ALL, Batch, Loader, batches, n_batches, split_updates, updates
from cudt.method import constraints
from cudt.method.constraints import LayerVerdict
from cudt.method.objectives import Objective
from cudt.models.layer_losses import (
    LayerwiseLosses,
    Measurement,
    draw_noise,
    measure_batches,
    measure_sigma,
)
from cudt.models.pretrained import compile_layers
from cudt.models.sharding import prepared, whole
from cudt.noise import NoiseSource
from cudt.runs.run import Run
from cudt.training.checkpoint import Checkpoints, Row
from cudt.training.display import Display, validation_line
from cudt.training.optimizer import learning_rate_share, primal_optimizer
from cudt.utils.device import matmul_in, random_state, seed_process, sent, set_random_state
from cudt.utils.errors import StopRequest, TrainingStoppedError, UserError
from cudt.utils.text import track

#: Called with the run after each epoch but the last, when it is saved; raises TrainingPrunedError
#: to end the training.
AfterEpoch = Callable[[Run], None]


@dataclass
class Progress:
    """How far a training is: the same in all processes, and after a resume."""

    epoch: int = 0
    step: int = 0
    sigma_x: float = math.nan
    seconds: float = 0.0  # of training, until the last checkpoint
    validated_step: int = 0  # the update after which validation data were measured last
    best: list[float] | None = None  # the rank of the best validation so far; lower is better
    best_epoch: int = 0
    best_step: int | None = None
    best_slack: list[float] = field(default_factory=list)  # in units of the loss
    best_multipliers: list[float] | None = None
    since_best: int = 0  # validations in a row that were not the best, without those of warm-up
    stopped_early: bool = False


class Trainer:
    """Trains one run to its end, from the beginning or from its last checkpoint."""

    def __init__(
        self,
        run: Run,
        layerwise: LayerwiseLosses,
        objective: Objective,
        accelerator: Accelerator,
        display: Display,
        after_epoch: AfterEpoch | None = None,
    ) -> None:
        self.run, self.settings = run, run.recipe.settings
        self.layerwise, self.model, self.task = layerwise, layerwise.model, layerwise.task
        self.objective, self.descent = objective, objective.descent
        self.accelerator, self.display, self.after_epoch = accelerator, display, after_epoch
        self.share = accelerator.process_index, accelerator.num_processes
        training, self.examples = self.settings.training, self.task.examples("train")
        self.batch_size = min(training.batch_size, len(self.examples))
        self.updates_per_epoch = len(self.examples) // self.batch_size
        self.n_updates = training.epochs * self.updates_per_epoch
        if self.batch_size < training.accumulation * accelerator.num_processes:
            raise UserError(
                f"training.batch_size: cannot split {self.batch_size} examples into "
                f"{training.accumulation} micro-batches on {accelerator.num_processes} processes; "
                "lower training.accumulation or use fewer processes"
            )
        if training.compile:
            compile_layers(self.model)
        self.wrapped = prepared(layerwise, accelerator)
        workers = self.settings.loading.workers
        self.loader = Loader(self.task, self.examples, accelerator.device, workers)
        self.optimizer = primal_optimizer(self.model, training)
        self.descent.add_slack_to(self.optimizer)
        self.checkpoints = Checkpoints(run, layerwise, self.optimizer, self.descent, accelerator)
        self.progress, self.stop, self.stopping = Progress(), StopRequest(), False
        self.rows: list[Row] = []
        """Of history.csv, since the last checkpoint."""

    # ---------------------------------------------------------------- the loop

    def fit(self) -> None:
        """Train to the end, or until a stop is requested; calling it again resumes."""
        self._begin()
        now = self.progress
        with StopRequest() as self.stop, self.display:
            while now.epoch < self.settings.training.epochs and not now.stopped_early:
                is_warm_up = now.epoch < self.settings.descent.warmup_epochs
                self.objective.warming_up = self.objective.is_constrained and is_warm_up
                for micro_batches in self._remaining_updates():
                    self._update(micro_batches)
                    self._maybe_save()
                self._end_epoch()

    def _begin(self) -> None:
        """Measure σ_x, or resume from the last checkpoint."""
        if (restored := self.checkpoints.restore()) is not None:
            self.progress = Progress(**restored)
        else:
            seed_process(self.settings.seed, 0, self.accelerator.process_index)
            self.progress.sigma_x = self.measure_sigma()
        # The rate depends only on the update, so that a resume does not change it.
        share = learning_rate_share(self.settings.training, self.n_updates)
        self.schedule = LambdaLR(self.optimizer, share, last_epoch=self.progress.step - 1)
        self._began = time.monotonic() - self.progress.seconds

    def _update(self, micro_batches: list[Batch]) -> None:
        """Step the weights down and λ up, both from the same losses f."""
        with matmul_in(self.settings.training.tf32, self.accelerator.device):
            f, gradient_norm = self._back_propagate(micro_batches)
        self._refuse_non_finite(f, gradient_norm)
        self.objective.accumulate_slack_gradient(f)
        self.objective.dual_step(f)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.progress.step += 1
        self._log_update(f, gradient_norm)

    def _remaining_updates(self) -> Iterator[list[Batch]]:
        """The micro-batches of each update left in this epoch, in an order that depends only on
        seed and epoch. Before some of them validation data are measured, which may end training.
        """
        training, now, lengths = self.settings.training, self.progress, None
        if training.group_by_length:
            lengths = [self.task.length(example) for example in self.examples]
        generator = np.random.default_rng([self.settings.seed, now.epoch])
        planned = updates(len(self.examples), self.batch_size, generator, lengths)
        remaining, every = planned[self._done :], training.validate_every
        loaded = self.loader.load(split_updates(remaining, training.accumulation, *self.share))
        for _ in remaining:
            is_due = every and self._done and self._done % every == 0
            if is_due and now.validated_step != now.step:
                self._validate()
            if self._is_over:
                return
            yield list(itertools.islice(loaded, training.accumulation))

    @property
    def _done(self) -> int:
        """The updates done in this epoch."""
        return self.progress.step - self.progress.epoch * self.updates_per_epoch

    @property
    def _is_over(self) -> bool:
        """Whether training ends, because the last validations found nothing better."""
        patience = self.settings.training.early_stopping
        return patience is not None and self.progress.since_best >= patience

    def _maybe_save(self) -> None:
        """Save every few updates, and stop if asked to: all processes after the same update."""
        every = self.settings.training.checkpoint_every
        stopping = self.stopping or (self.share == ALL and self.stop.requested)
        # The end of an epoch saves, too.
        is_due = every and self._done % every == 0 and self._done < self.updates_per_epoch
        if stopping or is_due:
            self._save()
        if stopping:
            # Any of the processes may have had the signal.
            self.stop.signal_number = max(gather_object([self.stop.signal_number]))
            raise KeyboardInterrupt

    def _end_epoch(self) -> None:
        now = self.progress
        if now.validated_step != now.step:
            self._validate()
        now.epoch += 1
        now.stopped_early = self._is_over and now.step < self.n_updates
        goes_on = now.epoch < self.settings.training.epochs and not now.stopped_early
        if goes_on and self.settings.descent.slack_restart:
            self.descent.restart_slack()
        self._save()
        if goes_on and self.after_epoch is not None:
            self.after_epoch(self.run)

    def _save(self) -> None:
        self.progress.seconds = round(time.monotonic() - self._began, 1)
        self.checkpoints.save(asdict(self.progress), self.rows)
        self.rows.clear()

    # ---------------------------------------------------------------- the gradient

    def _back_propagate(self, micro_batches: list[Batch]) -> tuple[Tensor, Tensor]:
        """Compute f and the gradient of J in the weights, and its norm; nothing else changes."""
        self.wrapped.train()
        weights = torch.stack([self._weights(batch).sum() for batch in micro_batches])
        count = self.accelerator.reduce(weights.sum(), "sum")
        gradient = self._gradient_before_losses(micro_batches, count)
        sums = []
        for number, batch in enumerate(micro_batches, 1):
            is_last = number == len(micro_batches)
            unsynced = self.accelerator.no_sync(self.wrapped)
            with contextlib.nullcontext() if is_last else unsynced:
                losses = self._loss_sums(batch, gradient)
                if gradient is None:
                    f = self.accelerator.reduce(losses.detach(), "sum") / count
                    gradient = self.objective.gradient(f)
                # Accelerate averages gradients over the processes, but their sum is needed.
                share = sent(gradient, losses.device) @ losses / count
                self.accelerator.backward(self.accelerator.num_processes * share)
            sums.append(losses.detach())
        return self._wait_for_losses(torch.stack(sums).sum(0), count)

    def _gradient_before_losses(self, micro_batches: list[Batch], count: Tensor) -> Tensor | None:
        """∂J/∂f if it has to be known before the first backward pass; None if the first micro-batch
        is the whole batch.

        In the linear form ∂J/∂f does not depend on f. In the log form it needs f of the whole
        batch, which costs a second forward pass if the batch is split. Dropout draws the same masks
        in both passes. The result is on the CPU, which has to know the layers without weight.
        """
        if not self.objective.gradient_needs_losses:
            return self.objective.gradient(torch.ones(len(self.objective.layers)))
        if len(micro_batches) == 1:
            return None
        before = random_state()
        with torch.no_grad():
            sums = torch.stack([self._loss_sums(batch) for batch in micro_batches]).sum(0)
        set_random_state(before)
        return self.objective.gradient((self.accelerator.reduce(sums, "sum") / count).cpu())

    def _wait_for_losses(self, sums: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """f and the norm of the primal gradient, on the CPU: the only wait for the device in an
        update, but for the log form, where ∂J/∂f needs f on the CPU.

        Whatever else the CPU has to know comes with them (whether a process was asked to stop) or
        follows from them on the CPU (λ, the layers that have no weight in the next update,
        everything that is logged).
        """
        asked = torch.full_like(sums[:1], self.stop.requested)
        longest = self.settings.training.clip_norm or math.inf
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), longest)
        totals = self.accelerator.reduce(torch.cat([sums, asked]), "sum")
        norm = whole(torch.as_tensor(norm)).reshape(1)
        known = torch.cat([totals[:-1] / count, totals[-1:], norm]).cpu()
        self.stopping = bool(known[-2])
        return known[:-2], known[-1]

    def _loss_sums(self, batch: Batch, gradient: Tensor | None = None) -> Tensor:
        """Σ over the examples of a micro-batch of each layer's loss, on inputs perturbed at
        γ_train. Layers with weight 0 in ∂J/∂f (for example, those that meet their constraints) are
        not back-propagated.
        """
        gamma, layers = self.settings.noise.gamma_train, self.objective.layers
        source = self._noise(f"train {self.settings.seed} {self.progress.epoch}")

        def noise(signal: Tensor, mask: Tensor) -> Tensor:
            return gamma * draw_noise(batch, signal, mask, source, signal.device)

        thinned, tokens = None, self.settings.readout.tokens
        if tokens and layers != [self.model.n_layers]:
            thinned = self.task.thinned(batch, tokens, source.seed)
        weights = [1.0] * len(layers) if gradient is None else gradient.tolist()
        # Never the last layer: distributed training waits for the gradients of all weights, even if
        # they are 0.
        pairs = zip(layers[:-1], weights[:-1], strict=True)
        constant = {layer for layer, weight in pairs if not weight}
        added = noise if gamma else None
        return self.wrapped(batch, added, layers, thinned, constant) @ self._weights(batch)

    def _weights(self, batch: Batch) -> Tensor:
        return sent(self.task.weights(batch), self.accelerator.device)

    def _noise(self, seed: str) -> NoiseSource:
        return NoiseSource(self.settings.noise.kind, self.progress.sigma_x, seed)

    def _refuse_non_finite(self, f: Tensor, gradient_norm: Tensor) -> None:
        """Raise a TrainingStoppedError before a step that would make the weights or λ NaN."""
        losses = zip(self.objective.layers, f.tolist(), strict=True)
        bad = [f"the loss of layer {layer}" for layer, loss in losses if not math.isfinite(loss)]
        if bad or not gradient_norm.isfinite():
            what = bad[0] if bad else "the gradient"
            raise TrainingStoppedError(
                f"{self.run.path}: update {self.progress.step + 1}: {what} is not finite; this "
                "update was not applied. Lower training.learning_rate (now "
                f"{self.settings.training.learning_rate:g}), or check the data"
            )

    # ---------------------------------------------------------------- validation

    def _validate(self) -> None:
        """Measure validation data, and keep the weights if they are the best so far."""
        now, warming_up = self.progress, self.objective.warming_up
        # A model of one's own may draw in evaluation, which must not change its training.
        before = random_state()
        measured = self.measure_validation()
        set_random_state(before)
        # By f_L, whatever the objective, so that compared runs are chosen by the same number.
        # Warm-up solves another problem: its validations count only while there are no others. NaN
        # is neither below nor above a number, so a validation with it would stay the best one.
        last = measured.layer_losses[-1].item()
        rank = [float(warming_up), math.inf if math.isnan(last) else last]
        is_best = now.best is None or rank < now.best
        now.validated_step = now.step
        slack = self.descent.slack_in_loss_units(measured.layer_losses).tolist()
        now.since_best = 0 if is_best or warming_up else now.since_best + 1
        if is_best:
            now.best, now.best_epoch, now.best_step = rank, now.epoch + 1, now.step
            now.best_slack = slack
            now.best_multipliers = self.descent.multiplier_values.tolist()
            # A process that dies before its next checkpoint repeats this validation.
            self.checkpoints.save_weights("best")
        self._log_validation(measured, self.judge(measured, slack))

    def measure_validation(self) -> Measurement:
        """Losses and scores on validation data at γ_train, split over the processes; the noise is
        the same every time. Windows of one clip, which resemble each other, count as one example.
        """
        examples, size = self.task.examples("validation"), self.settings.evaluation.batch_size
        device, workers = self.accelerator.device, self.settings.loading.workers
        data = batches(self.task, examples, size, device, workers, self.share)
        source, gamma = self._noise("validation"), self.settings.noise.gamma_train
        mine = [*measure_batches(self.layerwise, data, source, gamma)]
        # Process i of n has batches i, i + n, i + 2n, …
        in_order = itertools.chain(*zip(*gather_object([mine]), strict=True))
        measured = Measurement.joined([*in_order][: n_batches(examples, size)])
        if not self.task.windows_of_clips:
            return measured
        clips = [name.rpartition("/")[0] for name in measured.ids]
        # One clip has no standard error; that over its windows is better than none.
        return measured.grouped(clips if len(set(clips)) > 1 else measured.ids)

    def measure_sigma(self) -> float:
        """σ_x of the training data."""
        size, workers = self.settings.evaluation.batch_size, self.settings.loading.workers
        data = batches(self.task, self.examples, size, self.accelerator.device, workers)
        total = n_batches(self.examples, size)
        return measure_sigma(self.model, track(data, total, "measuring σ_x"))

    def judge(self, measured: Measurement, slack: list[float]) -> list[LayerVerdict]:
        """The verdict on each layer's constraint; `slack` is in units of the loss."""
        u, descent = torch.tensor(slack, dtype=torch.double), self.descent
        problem = (descent.reference, descent.rates, u, descent.form)
        return constraints.judge(measured.losses, measured.weights, *problem)

    # ---------------------------------------------------------------- history and display

    def _log_update(self, f: Tensor, gradient_norm: Tensor) -> None:
        now, descent = self.progress, self.descent
        self.display.update(now.step, self.updates_per_epoch, f.tolist())
        if now.step % self.settings.training.log_every:
            return
        values = {"loss": f}
        if self.objective.constrains:
            g, multipliers = descent.violations(f), descent.multiplier_values
            values |= {
                "violation": g,
                "price": g * multipliers,
                "multiplier": multipliers,
                "slack": descent.slack,
                "weight": descent.effective_weights(),
                "multiplier_norm": multipliers.norm(),
            }
        values["gradient_norm"] = gradient_norm
        self._record("train", {name: value.tolist() for name, value in values.items()})

    def _log_validation(self, measured: Measurement, verdicts: list[LayerVerdict]) -> None:
        now, name, losses = self.progress, self.task.metric_name, measured.layer_losses.tolist()
        metrics = [self.task.metric(score) for score in measured.layer_scores.tolist()]
        self._record("validation", {"loss": losses, name: metrics})
        if self.settings.training.early_stopping is not None:
            self._record("validation", {"validations_since_best": now.since_best})
        where = f"epoch {now.epoch + 1}/{self.settings.training.epochs}, update {now.step}"
        metric, words = f"{name} {metrics[-1]:.4g}", [one.verdict for one in verdicts]
        line = validation_line(self.objective, losses, metric, words)
        self.display.validated(f"{where}  {line}")

    def _record(self, split: str, values: Mapping[str, float | list[float]]) -> None:
        """Add rows of history.csv, and send them to the trackers. A list has values of the last
        layers, or of all; a number is of the whole model, which is layer 0.
        """
        now, tracked = self.progress, {}
        for name, given in values.items():
            listed = given if isinstance(given, list) else [given]
            first = self.model.n_layers - len(listed) + 1 if isinstance(given, list) else 0
            for layer, value in enumerate(listed, first):
                self.rows.append((now.step, now.epoch + 1, split, layer, name, value))
                group = name if split == "train" else f"{name}_{split}"
                tracked[f"{group}/layer_{layer:02}" if layer else group] = value
        self.accelerator.log(tracked, step=now.step)
