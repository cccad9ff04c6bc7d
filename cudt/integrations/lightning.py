"""Layerwise descent in Lightning: a callback that owns the constraints and steps λ with Lightning's
own optimiser.

    descent = cudt.LayerwiseDescent(6, alpha=0.1, reference=0.69, resilience="decay", beta=10.0)
    constraints = LayerwiseDescentCallback(descent)

    def training_step(self, batch):                           # of your LightningModule
        return constraints.loss(cudt.layer_losses(self.model, batch))

    def validation_step(self, batch):                         # optional, for the verdict
        constraints.measure(cudt.layer_losses(self.model, batch), len(batch["labels"]))

    lightning.Trainer(callbacks=[constraints]).fit(module, …)

Lightning gives a callback no way to replace the loss, so `training_step` asks for it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cudt.integrations import verdict
from cudt.method.constraints import LayerVerdict
from cudt.method.descent import LayerwiseDescent
from cudt.method.objectives import make_objective
from cudt.utils.device import survive_torchvision_mismatch
from cudt.utils.errors import UserError

# Lightning imports torchvision where it is installed.
survive_torchvision_mismatch()
try:
    import lightning.pytorch as pl
except ImportError as error:
    what = "cudt.integrations.lightning needs Lightning; pip install 'cudt[lightning]'"
    raise ImportError(what) from error


class LayerwiseDescentCallback(pl.Callback):
    """Trains a LightningModule on an objective of its layer losses (see the module's docstring).

    One step of the optimiser is one step of λ, on the mean f of the batches that it accumulates and
    of all processes. λ, u and the dual optimiser are in Lightning's checkpoints. Give `descent`
    resilience: without it λ grows for ever where a constraint cannot be met.

    Layer losses, violations, λ, slacks and the weights w_l are logged every `log_every_n_steps`
    updates, as `loss/layer_01`, `violation/…`, `multiplier/…`, `slack/…` and `weight/…`; validation
    logs `eval_loss/…`, `eval_violation/…`, `eval_feasible` and `eval_monotone`.
    """

    _trainer: pl.Trainer

    def __init__(
        self,
        descent: LayerwiseDescent,
        *,
        objective: str = "constrained",
        warmup_epochs: int = 0,
        slack_restart: bool = True,
    ) -> None:
        self.descent, self.objective = descent, make_objective(objective, descent)
        self.warmup_epochs, self.slack_restart = warmup_epochs, slack_restart
        self.verdicts: list[LayerVerdict] = []
        """The verdict on each layer in the last validation; empty if `measure` was not called."""
        self._epoch = 0
        self._seen: list[Tensor] = []
        self._measured: list[tuple[Tensor, Tensor]] = []

    # ---------------------------------------------------------------- what the module calls

    def loss(self, layer_losses: Tensor) -> Tensor:
        """J(f) for `training_step` to return, where f is the vector of the batch's mean layer
        losses.

        Its gradient in f is that of J at the mean f of all processes, which exchange f here in the
        log form. Accumulated batches would know their mean f too late.
        """
        own = layer_losses.to(self.descent.multiplier_values.dtype)
        f = own.detach()
        if self.objective.gradient_needs_losses:
            if self._trainer.accumulate_grad_batches > 1:
                raise UserError(
                    "accumulate_grad_batches: the log form needs the losses of the whole batch "
                    "first; set it to 1, or use form='linear'"
                )
            f = self._mean_over_processes(f)
        if self._trainer.training:
            self._seen.append(f)
        chosen = self.objective.select(f)
        # The value is J(f), the gradient ∂J/∂f at f. The gradient of u comes once per update, not
        # once per batch. Not a product of vectors, which automatic mixed precision would round.
        slope = self.objective.gradient(chosen) * self.objective.select(own - own.detach())
        return self.objective.value(chosen).detach() + slope.sum()

    def measure(self, layer_losses: Tensor, size: int = 1) -> None:
        """Add validation data to the verdict: losses of single examples, (L, examples), or a
        batch's mean losses, (L,), which stand for `size` examples.
        """
        losses = layer_losses.detach().cpu().double()
        if losses.ndim == 1:
            losses = losses.unsqueeze(1)
        else:
            size = 1
        self._measured.append((losses, losses.new_full(losses.shape[1:], size)))

    # ---------------------------------------------------------------- Lightning's hooks

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._trainer = trainer
        if self.descent.trained_slack is not None:
            # Lightning moves the state of the optimiser there. Otherwise λ stays on the CPU.
            self.descent.to(trainer.strategy.root_device)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._seen.clear()  # batches of an update that was interrupted

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # Not in the hooks of an epoch: on_train_epoch_start does not always run after a resume, and
        # a fit should end with its slack.
        epoch = trainer.current_epoch
        self.objective.warming_up = self.objective.is_constrained and epoch < self.warmup_epochs
        if self.slack_restart and epoch != self._epoch:
            self.descent.restart_slack()
        self._epoch = epoch

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Step λ, and give u its gradient, from the point that the gradients are of."""
        f = self._mean_over_processes(torch.stack(self._seen).mean(0))
        f = f.to(self.descent.multiplier_values.device)
        self._seen.clear()
        chosen = self.objective.select(f)
        self.objective.accumulate_slack_gradient(chosen)
        self.objective.dual_step(chosen)
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # it is declared late
        # Lightning takes about half a millisecond for every number that it is given.
        if every and (trainer.global_step + 1) % every == 0:
            pl_module.log_dict(verdict.update_log(self.objective, f))

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._measured.clear()

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Judge the layers on what `measure` was given, in all processes."""
        everyone: list[Any] = [self._measured]
        if trainer.world_size > 1:
            everyone *= trainer.world_size
            torch.distributed.all_gather_object(everyone, self._measured)
        parts = [part for one in everyone for part in one]
        if parts and not trainer.sanity_checking:
            losses, weights = (torch.cat(column, -1) for column in zip(*parts, strict=True))
            self.verdicts = verdict.judge(self.descent, losses, weights)
            log = verdict.verdict_log(self.verdicts, self.descent.reference)
            pl_module.log_dict(log, sync_dist=True)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.verdicts and trainer.is_global_zero:
            verdict.show(self.verdicts, self.descent.reference)

    def state_dict(self) -> dict[str, Any]:
        """λ, u and the state of the dual optimiser, and the epoch that u belongs to."""
        return {"descent": self.descent.state_dict(), "epoch": self._epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.descent.load_state_dict(state_dict["descent"])
        self._epoch = state_dict["epoch"]

    def _mean_over_processes(self, f: Tensor) -> Tensor:
        # A copy, because processes sum in place.
        return self._trainer.strategy.reduce(f.clone(), reduce_op="mean")
