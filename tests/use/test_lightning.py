"""The Lightning callback: its steps are those of a plain loop over whole batches."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from cudt.config.schema import Dual
from cudt.integrations.lightning import LayerwiseDescentCallback
from cudt.method import constraints
from cudt.method.descent import LayerwiseDescent
from cudt.method.objectives import make_objective
from cudt.utils.errors import UserError
from tests.processes import together

SLACK: dict[str, Any] = {"resilience": "slack", "beta": 0.5}
DECAY: dict[str, Any] = {"resilience": "decay", "beta": 0.5}


def problem(**settings: Any) -> LayerwiseDescent:
    """Rates that a network of random weights does not meet, so that every multiplier moves."""
    dual = Dual(optimizer="sgd", learning_rate=0.5)
    return LayerwiseDescent(3, **{"alpha": 0.3, "reference": math.log(2), "dual": dual, **settings})


class Layers(nn.Module):
    """Three layers and one readout; its output are the layer losses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
        losses = []
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
            losses.append(nn.functional.cross_entropy(self.head(x), labels, reduction=reduction))
        return torch.stack(losses)


class Module(pl.LightningModule):
    def __init__(self, constraints: LayerwiseDescentCallback, reduction: str) -> None:
        super().__init__()
        self.model, self.constraints, self.reduction = Layers(), constraints, reduction

    def training_step(self, batch: list[Tensor]) -> Tensor:
        return self.constraints.loss(self.model(*batch))

    def validation_step(self, batch: list[Tensor]) -> None:
        self.constraints.measure(self.model(*batch, reduction=self.reduction), len(batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05, weight_decay=0.1)
        self.constraints.descent.add_slack_to(optimizer)
        return optimizer


def loader(size: int, trainer: pl.Trainer | None = None, sampler: Any = None) -> DataLoader[Any]:
    """The data in their order; of several processes, each has its share of every update."""
    inputs = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
    examples = TensorDataset(inputs, (inputs[:, 0] > 0).long())
    if trainer is not None and trainer.world_size > 1:
        world, rank = trainer.world_size, trainer.global_rank
        sampler = DistributedSampler(examples, world, rank, shuffle=False)
    return DataLoader(examples, size, sampler=sampler)


def fitted(
    callback: LayerwiseDescentCallback,
    folder: Path,
    *,
    size: int = 8,
    validate: str = "",
    sampler: Any = None,
    ckpt_path: Path | None = None,
    **options: Any,
) -> Layers:
    """The network after `fit`; `validate` is the reduction of its validation losses, if any."""
    module = Module(callback, validate)
    settings = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "use_distributed_sampler": False,
        "default_root_dir": folder,
        **options,
    }
    trainer = pl.Trainer(callbacks=[callback, *settings.pop("callbacks", [])], **settings)
    validation = loader(4, trainer) if validate else None
    trainer.fit(module, loader(size, trainer, sampler), validation, ckpt_path=ckpt_path)
    return module.model


def by_hand(descent: LayerwiseDescent, objective: str = "constrained", warmup: int = 0) -> Layers:
    """What `fitted` does, as a plain loop over whole batches."""
    model, chosen = Layers(), make_objective(objective, descent)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
    descent.add_slack_to(optimizer)
    for epoch in range(2):
        if epoch:
            descent.restart_slack()
        chosen.warming_up = chosen.is_constrained and epoch < warmup
        for batch in loader(8):
            optimizer.zero_grad()
            mine = chosen.select(model(*batch))
            chosen.value(mine).backward()
            chosen.dual_step(mine)
            optimizer.step()
    return model


def state(model: nn.Module, descent: LayerwiseDescent) -> Tensor:
    """Weights, λ and u."""
    weights = nn.utils.parameters_to_vector(model.parameters())
    return torch.cat([weights, descent.multiplier_values, descent.slack]).detach()


@pytest.mark.parametrize("settings", [{}, SLACK, DECAY], ids=["none", "slack", "decay"])
def test_accumulated_batches_give_the_step_of_one_batch(tmp_path, settings):
    callback, expected = LayerwiseDescentCallback(problem(**settings)), problem(**settings)
    model = fitted(callback, tmp_path, size=2, accumulate_grad_batches=4)
    wanted = state(by_hand(expected), expected)
    assert torch.allclose(state(model, callback.descent), wanted, rtol=0, atol=1e-6)
    assert expected.multiplier_values.max() > 0.01


@pytest.mark.parametrize(
    ("settings", "callback", "hand"),
    [
        ({"form": "log", **SLACK}, {}, {}),
        ({"form": "log", "gradient": "proxy"}, {}, {}),
        ({"form": "ladder"}, {}, {}),
        (SLACK, {"objective": "erm"}, {"objective": "erm"}),
        (SLACK, {"objective": "supervised"}, {"objective": "supervised"}),
        (SLACK, {"warmup_epochs": 1}, {"warmup": 1}),
    ],
    ids=["log", "proxy", "ladder", "erm", "supervised", "warm-up"],
)
def test_forms_and_options_give_the_steps_of_a_plain_loop(tmp_path, settings, callback, hand):
    made, expected = LayerwiseDescentCallback(problem(**settings), **callback), problem(**settings)
    model = fitted(made, tmp_path)
    wanted = state(by_hand(expected, **hand), expected)
    assert torch.allclose(state(model, made.descent), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("form", ["linear", "log"])
def test_two_processes_give_the_steps_and_the_verdict_of_one(tmp_path, form):
    settings, split = {"form": form, **SLACK}, 1 if form == "log" else 2
    shared = {"devices": 2, "strategy": "ddp", "size": 4 // split, "accumulate_grad_batches": split}

    def work(**options: Any) -> list[float]:
        torch.set_num_threads(1)
        callback = LayerwiseDescentCallback(problem(**settings))
        model = fitted(callback, tmp_path, validate="none", **options)
        judged = [value for one in callback.verdicts for value in (one.loss, one.standard_error)]
        return [*state(model, callback.descent).tolist(), *judged]

    # In a process of its own, too: after a backward pass, this one could not be forked any more.
    (alone,) = together(1, work)
    first, second = together(2, lambda: work(**shared))
    assert first == second
    assert first == pytest.approx(alone, abs=2e-6)


@pytest.mark.parametrize("update", [2, 3], ids=["within an epoch", "at its end"])
def test_resuming_from_a_checkpoint_gives_the_same_training(tmp_path, update):
    settings = {**SLACK, "alpha": 0.6, "dual": Dual(optimizer="adam", learning_rate=0.1)}
    kind: dict[str, Any] = {"every_n_train_steps": 1} if update == 2 else {"every_n_epochs": 1}
    files = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, **kind)
    # Three equal batches: after a resume within an epoch, Lightning starts with the first one.
    options: dict[str, Any] = {"max_epochs": 3, "sampler": [*range(8)] * 3}
    found, expected = (
        LayerwiseDescentCallback(problem(**settings), warmup_epochs=1) for _ in range(2)
    )
    whole = fitted(expected, tmp_path, callbacks=[files], enable_checkpointing=True, **options)
    resumed = fitted(found, tmp_path, ckpt_path=tmp_path / f"step={update}.ckpt", **options)
    assert torch.equal(state(resumed, found.descent), state(whole, expected.descent))


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_the_verdict_is_that_of_single_examples_or_of_means_of_batches(tmp_path, reduction):
    callback = LayerwiseDescentCallback(problem(**SLACK))
    model, descent = fitted(callback, tmp_path, validate=reduction), callback.descent
    with torch.no_grad():
        rows = [model(*batch, reduction=reduction).reshape(3, -1) for batch in loader(4)]
    losses = torch.cat(rows, 1).double()
    weights = losses.new_full(losses.shape[1:], 24 / losses.shape[1])
    rates, slack = descent.rates, descent.slack.double()
    expected = constraints.judge(losses, weights, descent.reference, rates, slack)
    for found, its in zip(callback.verdicts, expected, strict=True):
        assert found.verdict == its.verdict
        assert found.loss == pytest.approx(its.loss)
        assert found.standard_error == pytest.approx(its.standard_error, rel=1e-5)


def test_accumulation_is_refused_in_the_log_form(tmp_path):
    callback = LayerwiseDescentCallback(problem(form="log"))
    with pytest.raises(UserError, match=r"^accumulate_grad_batches: the log form needs"):
        fitted(callback, tmp_path, accumulate_grad_batches=2)
