"""The training loop, from top to bottom: epochs of updates, validation, checkpoints, the verdict.

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
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from cudt.data.loader import ALL, Batch, Loader, Share, batches, n_batches, split_updates, updates
from cudt.method import constraints
from cudt.method.constraints import LayerVerdict
from cudt.method.measurement import Measurement
from cudt.models.assemble import TrainingProblem
from cudt.models.compiled import compile_layers
from cudt.models.layer_losses import draw_noise, measure_batches, measure_sigma
from cudt.models.sharding import prepared, whole
from cudt.noise import NoiseSource
from cudt.runs.run import Run
from cudt.tasks.base import Split
from cudt.training import conclusion
from cudt.training.checkpoint import Checkpoints, load_weights
from cudt.training.display import Display
from cudt.training.history import History
from cudt.training.non_finite import refuse_non_finite, stopping_if_refused
from cudt.training.primal import Primal
from cudt.training.selection import Selection, is_better, rank_of
from cudt.training.state import TrainingState
from cudt.training.tracking import Tracking
from cudt.training.view import TrainingView
from cudt.utils import processes
from cudt.utils.device import matmul_in, random_state, seed_process, set_random_state
from cudt.utils.errors import UserError
from cudt.utils.interrupt import StopRequest
from cudt.utils.progress import track
from cudt.utils.transfer import sent

#: Called with the run after each epoch but the last, when it is saved; raises TrainingPrunedError
#: to end the training.
AfterEpoch = Callable[[Run], None]


class Trainer:
    """Trains one run to its end, from the beginning or from its last checkpoint."""

    def __init__(
        self,
        run: Run,
        problem: TrainingProblem,
        accelerator: Accelerator,
        display: Display,
        after_epoch: AfterEpoch | None = None,
        tracking: Tracking | None = None,
    ) -> None:
        self.run = run
        self.problem = problem
        self.after_epoch = after_epoch
        self.settings = run.recipe.settings
        self.accelerator = accelerator
        self.display = display
        self.tracking = tracking or Tracking(run, accelerator)
        self.task = problem.task
        self.objective = problem.objective
        self.descent = problem.descent
        self.layerwise = problem.layerwise
        self.model = problem.layerwise.model
        if self.settings.training.compile:
            compile_layers(self.model)
        self._read_data()
        # It may take longer in one than the others wait for it to share the weights.
        processes.wait()
        self.wrapped = prepared(problem.layerwise, self.model, accelerator)
        self.loader = Loader(
            self.task, self.train_examples, accelerator.device, self.settings.loading.workers
        )
        training, slack = self.settings.training, self.descent.slack_parameters()
        self.primal = Primal(self.model, slack, training, self.updates_per_epoch)
        self.selection = Selection(training, self.updates_per_epoch)
        self.state = TrainingState()
        self.stop, self.stopping = StopRequest(), False
        self.history = History()
        self.checkpoints = Checkpoints(run, self.layerwise, self.primal.optimizer, self.descent)

    def _read_data(self) -> None:
        """Read training and validation data, so that their errors are reported before the first
        epoch.
        """
        self.train_examples = self.task.examples("train")
        self.task.examples("validation")
        self.batch_size = min(self.settings.training.batch_size, len(self.train_examples))
        self.updates_per_epoch = len(self.train_examples) // self.batch_size
        accumulation, n_processes = (
            self.settings.training.accumulation,
            self.accelerator.num_processes,
        )
        if self.batch_size < accumulation * n_processes:
            raise UserError(
                f"training.batch_size: cannot split {self.batch_size} examples into "
                f"{accumulation} micro-batches on "
                f"{n_processes} processes; lower training.accumulation or use fewer processes"
            )

    # ---------------------------------------------------------------- the loop

    def fit(self) -> None:
        """Train to the end, or until a stop is requested; calling it again resumes."""
        is_resumed = processes.from_main(self.checkpoints.exist())
        if is_resumed:
            self.state, self.history = self.checkpoints.restore()
        else:
            seed_process(self.settings.seed, 0, self.accelerator.process_index)
            self.state.sigma_x = self._measure_sigma()
        self.tracking.start()
        training, device = self.settings.training, self.accelerator.device
        with StopRequest() as self.stop, self.display:
            while self.selection.goes_on(self.state):
                self.objective.warming_up = self._warming_up
                self._maybe_validate()
                for micro_batches in self._remaining_updates():
                    with matmul_in(training.tf32, device):
                        f, grad_norm = self._update(micro_batches)
                    self.state.step += 1
                    self.state.step_in_epoch += 1
                    self._log_update(f, grad_norm)
                    self._maybe_validate()
                    self._maybe_pause()
                self._end_epoch()
                if self.after_epoch is not None and self.selection.goes_on(self.state):
                    self.after_epoch(self.run)
        self._conclude()

    @property
    def _warming_up(self) -> bool:
        """Whether the constraints are off in this epoch."""
        return (
            self.objective.is_constrained and self.state.epoch < self.settings.descent.warmup_epochs
        )

    def _remaining_updates(self) -> Iterator[list[Batch]]:
        """The micro-batches of each update left in this epoch, in an order that depends only on
        seed and epoch.

        None are left if training stops early.
        """
        group, parts = self.settings.training.group_by_length, self.settings.training.accumulation
        lengths = [self.task.length(example) for example in self.train_examples] if group else None
        planned = updates(len(self.train_examples), self.batch_size, self._generator(), lengths)
        share = (self.accelerator.process_index, self.accelerator.num_processes)
        loaded = self.loader.load(split_updates(planned[self.state.step_in_epoch :], parts, *share))
        while not self.selection.is_over(self.state) and (
            micro_batches := list(itertools.islice(loaded, parts))
        ):
            yield micro_batches

    def _generator(self) -> np.random.Generator:
        """A generator that depends only on seed and epoch: the same in every process and after a
        resume.
        """
        return np.random.default_rng([self.settings.seed, self.state.epoch])

    def _update(self, micro_batches: list[Batch]) -> tuple[Tensor, Tensor]:
        """Do one primal and one dual step; return f and the norm of the primal gradient, on the
        CPU.
        """
        f, grad_norm = self._back_propagate(micro_batches)
        refuse_non_finite(
            self.state.step + 1,
            f,
            grad_norm,
            self.objective,
            self.model,
            micro_batches,
            self.settings,
        )
        self.objective.accumulate_slack_gradient(f)
        with stopping_if_refused(self.state.step + 1):
            self.objective.dual_step(f)
        self.primal.step(self.state.step)
        self.descent.project_slack()
        return f, grad_norm

    def _back_propagate(self, micro_batches: list[Batch]) -> tuple[Tensor, Tensor]:
        """Compute f and the gradient of J in the weights, and its norm; nothing else changes."""
        self.wrapped.train()
        count = self._sum_over_processes(
            torch.stack([self._weights(batch).sum() for batch in micro_batches]).sum()
        )
        gradient = self._gradient_before_losses(micro_batches, count)
        sums = []
        for number, batch in enumerate(micro_batches, 1):
            with (
                contextlib.nullcontext()
                if number == len(micro_batches)
                else self.accelerator.no_sync(self.wrapped)
            ):
                losses = self._loss_sums(batch, gradient)
                if gradient is None:
                    gradient = self.objective.gradient(
                        self._sum_over_processes(losses.detach()) / count
                    )
                # Accelerate averages gradients over the processes, but their sum is needed.
                weights = sent(gradient, losses.device)
                share = self.accelerator.num_processes * (weights @ losses) / count
                self.accelerator.backward(share)
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
        device = self.accelerator.device
        with torch.no_grad(), torch.random.fork_rng([] if device.type == "cpu" else [device]):
            sums = torch.stack([self._loss_sums(batch) for batch in micro_batches]).sum(0)
        return self.objective.gradient((self._sum_over_processes(sums) / count).cpu())

    def _wait_for_losses(self, sums: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """f and the norm of the primal gradient, on the CPU: the only wait for the device in an
        update.

        Whatever else the CPU has to know comes with them (whether a process was asked to stop) or
        follows from them on the CPU (λ, the layers that have no weight in the next update,
        everything that is logged).
        """
        asked = torch.full_like(sums[:1], self.stop.requested)
        norm = self.accelerator.clip_grad_norm_(
            self.model.parameters(), self.settings.training.clip_norm or math.inf
        )
        totals = self._sum_over_processes(torch.cat([sums, asked]))
        known = torch.cat(
            [totals[:-1] / count, totals[-1:], whole(torch.as_tensor(norm)).reshape(1)]
        ).cpu()
        self.stopping = bool(known[-2])
        return known[:-2], known[-1]

    def _loss_sums(self, batch: Batch, gradient: Tensor | None = None) -> Tensor:
        """Σ over the examples of a micro-batch of each layer's loss, on inputs perturbed at
        γ_train.

        Layers with weight 0 in ∂J/∂f (for example, those that meet their constraints) are not
        back-propagated.
        """
        gamma = self.settings.noise.gamma_train
        source = self._noise(f"train {self.settings.seed} {self.state.epoch}")
        noise = (
            gamma * draw_noise(self.model, batch, source, self.accelerator.device)
            if gamma
            else None
        )
        tokens, layers = self.settings.readout.tokens, self.objective.layers
        thinned = (
            self.task.thinned(batch, tokens, source.seed)
            if tokens and layers != [self.model.n_layers]
            else None
        )
        weights = [1.0] * len(layers) if gradient is None else gradient.tolist()
        # Never the last layer: distributed training waits for the gradients of all weights, even if
        # they are 0.
        constant = {
            layer for layer, weight in zip(layers[:-1], weights[:-1], strict=True) if not weight
        }
        counts = self._weights(batch)
        # The gradient of a single layer is known up to a factor.
        known = torch.ones(1) if gradient is None and len(layers) == 1 else gradient
        announced = None if known is None else sent(known, counts.device).unsqueeze(1) * counts
        return self.wrapped(batch, noise, layers, thinned, constant, announced) @ counts

    def _weights(self, batch: Batch) -> Tensor:
        return sent(self.task.weights(batch), self.accelerator.device)

    def _noise(self, seed: str) -> NoiseSource:
        return NoiseSource(self.settings.noise.kind, self.state.sigma_x, seed)

    def _sum_over_processes(self, values: Tensor) -> Tensor:
        return self.accelerator.reduce(values, reduction="sum")

    # ---------------------------------------------------------------- validation, the end of an
    # epoch, and of a run

    def _end_epoch(self) -> None:
        if self.state.validated_step != self.state.step:
            self._validate_and_select()
        if self.settings.descent.slack_restart:
            self.descent.restart_slack()
        self.selection.end_epoch(self.state)
        self._save()

    def _maybe_validate(self) -> None:
        if self.selection.is_due(self.state):
            # A model of one's own may draw in evaluation, too, and must not change what its
            # training draws.
            before = random_state()
            self._validate_and_select()
            set_random_state(before)

    def _validate_and_select(self) -> None:
        """Measure validation data, and keep the weights if they are the best so far."""
        # Validation can run out of memory; with a smaller evaluation.batch_size the run then
        # resumes from here. And if training ends before the next checkpoint, the best weights on
        # disk are those of this one.
        self._save()
        measured = self._validate()
        self.state.last_slack = self.descent.slack_in_loss_units(measured.layer_losses).tolist()
        independent = self._independent(measured)
        rank = rank_of(
            self.objective.rank(independent.losses, independent.weights),
            warming_up=self._warming_up,
        )
        if is_better(rank, self.state.best):
            self.checkpoints.save_weights("best", self.state.step)
            self.state.best_slack = self.state.last_slack
            self.state.best_multipliers = self.descent.multiplier_values.tolist()
        self.selection.note(self.state, rank, warming_up=self._warming_up)
        self._log_validation(measured)

    def _validate(self) -> Measurement:
        """Measure validation data at γ_train, split over the processes; the noise is the same every
        time.
        """
        gammas, share = [self.settings.noise.gamma_train], (processes.index(), processes.count())
        mine = measure_batches(
            self.layerwise, self._split("validation", share), self._noise("validation"), gammas
        )
        size = self.settings.evaluation.batch_size
        total = n_batches(self.task.examples("validation"), size)
        return Measurement.joined(processes.in_order([part for (part,) in mine], total))

    def _conclude(self) -> None:
        """Measure the selected weights on validation data, write the verdict and mark the run as
        finished.
        """
        self.checkpoints.save_weights("last", self.state.step)
        self.layerwise.load_learned_weights(load_weights(self.run))
        measured = self._validate()
        verdicts = self._judge(
            measured, self.state.best_slack if self.run.weights == "best" else self.state.last_slack
        )
        sigma_x = self._measure_sigma() if self.model.signal_is_learned else self.state.sigma_x
        if self.accelerator.is_main_process:
            conclusion.write(self.run, self.problem, self.state, measured, verdicts, sigma_x)

    def _judge(self, measured: Measurement, slack: list[float]) -> list[LayerVerdict]:
        relaxed = torch.tensor(slack, dtype=torch.double)
        descent, independent = self.descent, self._independent(measured)
        return constraints.judge(
            independent.losses,
            independent.weights,
            descent.reference,
            descent.rates,
            relaxed,
            descent.form,
        )

    def _independent(self, measured: Measurement) -> Measurement:
        """One row for all windows of a clip, which resemble each other; standard errors are over
        clips then.
        """
        return (
            measured.grouped(self.task.independent(measured.ids))
            if self.task.windows_of_clips
            else measured
        )

    def _measure_sigma(self) -> float:
        total = n_batches(self.train_examples, self.settings.evaluation.batch_size)
        return measure_sigma(self.model, track(self._split("train"), total, "measuring σ_x"))

    def _split(self, split: Split, share: Share = ALL) -> Iterator[Batch]:
        examples = self.task.examples(split)
        size, workers = self.settings.evaluation.batch_size, self.settings.loading.workers
        return batches(self.task, examples, size, self.accelerator.device, workers, share)

    # ---------------------------------------------------------------- history and display

    def _log_update(self, f: Tensor, grad_norm: Tensor) -> None:
        self.display.update(self._view(f))
        if self.state.step % self.settings.training.log_every:
            return
        self._record("train", self.objective.layers, {"loss": f.tolist()})
        if self.objective.constrains:
            self._log_constraints(f)
        self._record("train", [0], {"gradient_norm": [grad_norm.item()]})

    def _log_constraints(self, f: Tensor) -> None:
        """Record violations, multipliers, and what these do: the price λ_l·g_l and the weight w_l
        of each layer.
        """
        violations, multipliers = self.descent.violations(f), self.descent.multiplier_values
        by_layer = {
            "violation": violations.tolist(),
            "price": (violations * multipliers).tolist(),
            "multiplier": multipliers.tolist(),
            "slack": self.descent.slack.tolist(),
            "weight": self.descent.effective_weights().tolist(),
        }
        self._record("train", range(1, self.model.n_layers + 1), by_layer)
        self._record("train", [0], {"multiplier_norm": [multipliers.norm().item()]})

    def _log_validation(self, measured: Measurement) -> None:
        self.state.validation_losses = measured.layer_losses.tolist()
        metrics = [self.task.metric(score) for score in measured.layer_scores.tolist()]
        layers = list(range(1, self.model.n_layers + 1))
        self._record(
            "validation",
            layers,
            {"loss": self.state.validation_losses, self.task.metric_name: metrics},
        )
        if self.settings.training.early_stopping is not None:
            self._record("validation", [0], {"validations_since_best": [self.state.since_best]})
        verdicts = [one.verdict for one in self._judge(measured, self.state.last_slack)]
        view = dataclasses.replace(self._view(None), verdicts=verdicts)
        self.display.epoch_ended(view, f"{self.task.metric_name} {metrics[-1]:.4g}")

    def _record(self, split: str, layers: Sequence[int], values: dict[str, list[float]]) -> None:
        # The main process writes it.
        if self.accelerator.is_main_process:
            now = (self.state.step, self.state.epoch + 1)
            self.tracking.log(self.history.record(*now, split, layers, values))

    def _view(self, f: Tensor | None) -> TrainingView:
        constrained = self.objective.is_constrained
        return TrainingView(
            title=f"{self.run.recipe.name} · {self.objective.name} · seed {self.settings.seed}",
            step=self.state.step,
            steps=self.settings.training.epochs * self.updates_per_epoch,
            epoch=self.state.epoch + 1,
            epochs=self.settings.training.epochs,
            reference=self.descent.reference,
            rates=self.descent.rates,
            warming_up=self._warming_up,
            train_losses=dict(zip(self.objective.layers, f.tolist(), strict=True))
            if f is not None
            else {},
            validation_losses=self.state.validation_losses,
            multipliers=self.descent.multiplier_values.tolist() if constrained else None,
            weights=self.descent.effective_weights().tolist() if constrained else None,
            form=self.descent.form,
        )

    # ---------------------------------------------------------------- stopping and saving

    def _maybe_pause(self) -> None:
        every = self.settings.training.checkpoint_every
        # All processes stop after the same update: after the one in which they learned of it
        # together.
        stopping = self.stop.requested if self.accelerator.num_processes == 1 else self.stopping
        if stopping or (every and self.state.step_in_epoch % every == 0):
            self._save()
        if stopping:
            # Any of them may have had the signal.
            self.stop.signal_number = max(processes.gathered(self.stop.signal_number))
            raise KeyboardInterrupt

    def _save(self) -> None:
        self.checkpoints.save(self.state, self.history)
