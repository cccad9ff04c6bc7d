"""A LightningModule with layers, its data, and the same training as a plain loop."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from cudt.config.schema import Dual
from cudt.integrations.lightning import LayerwiseDescentCallback
from cudt.method.descent import LayerwiseDescent
from cudt.method.objectives import make_objective
from cudt.utils import processes

N_LAYERS, UPDATE = 3, 8
SLACK: dict[str, Any] = {"resilience": "slack", "beta": 0.5}


def problem(**settings: Any) -> LayerwiseDescent:
    """Rates that a network of random weights does not meet, so that every multiplier moves."""
    dual = Dual(optimizer="sgd", learning_rate=0.5)
    return LayerwiseDescent(
        N_LAYERS, **{"alpha": 0.3, "reference": math.log(2), "dual": dual, **settings}
    )


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(24, 4, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


class Layers(nn.Module):
    """Three layers and one readout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(N_LAYERS))
        self.head = nn.Linear(4, 2)

    def forward(self, inputs: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        """The layer losses."""
        losses = []
        for layer in self.layers:
            inputs = inputs + torch.tanh(layer(inputs))
            losses.append(
                nn.functional.cross_entropy(self.head(inputs), labels, reduction=reduction)
            )
        return torch.stack(losses)


class Module(pl.LightningModule):
    """Layers, trained by Lightning."""

    def __init__(self, constraints: LayerwiseDescentCallback, per_example: bool = True) -> None:
        super().__init__()
        self.model = Layers()
        self.constraints = constraints
        self.reduction = "none" if per_example else "mean"

    def training_step(self, batch: list[Tensor]) -> Tensor:
        return self.constraints.loss(self.model(*batch))

    def validation_step(self, batch: list[Tensor]) -> None:
        self.constraints.measure(self.model(*batch, reduction=self.reduction), len(batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = primal(self.model)
        self.constraints.descent.add_slack_to(optimizer)
        return optimizer


def primal(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)


def loader(batch_size: int) -> DataLoader[Any]:
    """The data in their order; of several processes, each has its share of every update."""
    examples = TensorDataset(*data())
    sampler: DistributedSampler[Any] | None = None
    if processes.count() > 1:
        sampler = DistributedSampler(examples, processes.count(), processes.index(), shuffle=False)
    return DataLoader(examples, batch_size, sampler=sampler)


def fitted(
    constraints: LayerwiseDescentCallback,
    folder: Path,
    *,
    batch_size: int = UPDATE,
    validate: bool = False,
    ckpt_path: Path | None = None,
    per_example: bool = True,
    training: DataLoader[Any] | None = None,
    **trainer: Any,
) -> tuple[Module, pl.Trainer]:
    """A module after `fit`, with its trainer."""
    module = Module(constraints, per_example)
    silent = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    # `barebones` would do the same, but refuse to log.
    settings = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "log_every_n_steps": 1,
        **silent,
        **trainer,
    }
    settings["use_distributed_sampler"] = False
    made = pl.Trainer(
        callbacks=[constraints, *settings.pop("callbacks", [])], default_root_dir=folder, **settings
    )
    validation = loader(4) if validate else None
    made.fit(module, training or loader(batch_size), validation, ckpt_path=ckpt_path)
    return module, made


def by_hand(
    descent: LayerwiseDescent,
    objective: str = "constrained",
    epochs: int = 2,
    *,
    warmup_epochs: int = 0,
    clip: float = math.inf,
    bf16: bool = False,
) -> tuple[Layers, list[Tensor]]:
    """The weights after the training that `fitted` does, as a plain loop over whole batches, and f
    of every update."""
    model, chosen, seen = Layers(), make_objective(objective, descent), []
    optimizer = primal(model)
    descent.add_slack_to(optimizer)
    for epoch in range(epochs):
        if epoch:
            descent.restart_slack()
        chosen.warming_up = chosen.is_constrained and epoch < warmup_epochs
        for batch in batches():
            optimizer.zero_grad()
            # Lightning does not cache weights, either.
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False):
                f = model(*batch)
            seen.append(f.detach())
            mine = chosen.select(f)
            chosen.value(mine).backward()
            nn.utils.clip_grad_norm_([*model.parameters(), *descent.slack_parameters()], clip)
            chosen.dual_step(mine)
            optimizer.step()
    return model, seen


def batches() -> Iterator[list[Tensor]]:
    yield from loader(UPDATE)
