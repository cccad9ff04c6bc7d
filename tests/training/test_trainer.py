from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
import torch
from cudt.models.unrolled_network import UnrolledTransformer
from rich.console import Console
from safetensors.torch import load_file

from cudt.models.assemble import assemble
from cudt.runs.info import MultiplierInfo
from cudt.runs.run import run_for
from cudt.training.display import PlainDisplay
from cudt.training.trainer import Trainer
from cudt.utils.device import accelerator_for
from cudt.utils.errors import TrainingStoppedError, UserError
from tests.conftest import tiny_recipe, train_quietly

CPU = torch.device("cpu")
#: The epochs of both weights if the first of three is the best.
EPOCHS: dict[Literal["best", "last"], int] = {"best": 1, "last": 3}


def trainer_for(out: Path, *overrides: str, objective: str = "constrained") -> Trainer:
    recipe = tiny_recipe(*overrides, objective=objective)
    display = PlainDisplay(Console(quiet=True))
    trainer = Trainer(
        run_for(recipe, out), assemble(recipe, None, CPU), accelerator_for("cpu", "fp32"), display
    )
    trainer.state.sigma_x = 1.0
    return trainer


def head_of(trainer: Trainer) -> torch.nn.Linear:
    assert isinstance(trainer.model, UnrolledTransformer)
    return trainer.model.head


def step_plainly(trainer: Trainer, rate: float) -> None:
    """Let a trainer step down the gradient itself, without Adam."""
    trained = [*trainer.model.parameters(), *trainer.descent.slack_parameters()]
    trainer.primal.optimizer = torch.optim.SGD(trained, lr=rate)
    trainer.primal._full_rates = [rate]


def some_updates(trainer: Trainer, count: int = 4) -> dict[str, torch.Tensor]:
    """Weights, multipliers and slacks after a few updates with multipliers that are not zero."""
    trainer.descent.multiplier_values.add_(torch.tensor([0.5, 1.0, 1.5]))
    for micro_batches, _ in zip(trainer._remaining_updates(), range(count), strict=False):
        f, _ = trainer._update(micro_batches)
    state = {name: value.detach().clone() for name, value in trainer.layerwise.state_dict().items()}
    return {
        **state,
        "multipliers": trainer.descent.multiplier_values.clone(),
        "slack": trainer.descent.slack,
        "f": f,
    }


# ---------------------------------------------------------------- one update


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("descent.form=log",),
        ("descent.resilience=slack", "descent.beta=1.0"),
        ("descent.resilience=decay", "descent.beta=1.0", "descent.form=log"),
        ("descent.gradient=proxy",),
        ("descent.gradient=proxy", "descent.form=log"),
        ("descent.form=ladder",),
        ("descent.resilience=decay", "descent.beta=1.0", "descent.decay=decoupled"),
    ],
)
@pytest.mark.parametrize("objective", ["constrained", "erm", "supervised"])
def test_micro_batches_take_the_step_of_one_batch(tmp_path, overrides, objective):
    # Plain gradients: Adam would blow rounding up where a gradient is nearly zero.
    def updates(accumulation: int) -> dict[str, torch.Tensor]:
        trainer = trainer_for(
            tmp_path,
            f"training.accumulation={accumulation}",
            "training.clip_norm=null",
            *overrides,
            objective=objective,
        )
        step_plainly(trainer, 0.1)
        return some_updates(trainer)

    whole, split = updates(1), updates(5)
    for name, value in whole.items():
        assert torch.allclose(value, split[name], atol=1e-5), name


def test_the_primal_step_is_the_gradient_of_the_lagrangian(tmp_path):
    trainer = trainer_for(
        tmp_path, "training.clip_norm=null", "noise.gamma_train=0.0", "descent.form=log"
    )
    trainer.descent.multiplier_values.add_(torch.tensor([0.5, 1.0, 1.5]))
    step_plainly(trainer, 1.0)
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    (batch,) = next(trainer._remaining_updates())
    losses = trainer.layerwise(batch)
    trainer.descent.lagrangian(losses.mean(1)).backward()
    expected = {
        name: value.grad.clone()
        for name, value in trainer.model.named_parameters()
        if value.grad is not None
    }
    trainer.model.zero_grad()
    trainer._update([batch])
    for name, value in trainer.model.named_parameters():
        assert torch.allclose(before[name] - value.detach(), expected[name], atol=1e-6), name


def test_layers_that_weigh_nothing_are_not_back_propagated_and_the_step_is_the_same(tmp_path):
    def step(reads: list[set[int]]) -> dict[str, torch.Tensor]:
        trainer = trainer_for(tmp_path, "training.clip_norm=null", "descent.form=linear")
        trainer.descent.multiplier_values.copy_(torch.tensor([0.0, 0.0, 1.5]))
        forward = trainer.wrapped.forward

        def watched(batch, noise, layers, thinned, constant, announced):
            reads.append(constant)
            return forward(
                batch, noise, layers, thinned, constant if len(reads) > 1 else (), announced
            )

        trainer.wrapped.forward = watched
        trainer._update(next(trainer._remaining_updates()))
        return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}

    reads: list[set[int]] = []
    with_gradients = step(reads)
    without = step(reads)
    assert reads == [{1}, {1}]
    for name, value in with_gradients.items():
        assert torch.allclose(value, without[name], atol=1e-7), name


def test_warm_up_leaves_the_multipliers_at_zero(tmp_path):
    run = train_quietly(tiny_recipe("descent.warmup_epochs=1", "descent.alpha=0.5"), tmp_path)
    history = run.read_table("history")
    multipliers = history[history["name"] == "multiplier"]
    assert set(multipliers["epoch"]) == {2}
    assert multipliers["value"].max() > 0


@pytest.mark.parametrize(("restart", "expected"), [("true", 0.0), ("false", 0.3)])
def test_slacks_restart_after_an_epoch_if_the_recipe_says_so(tmp_path, restart, expected):
    trainer = trainer_for(
        tmp_path, "descent.resilience=slack", "descent.beta=1.0", f"descent.slack_restart={restart}"
    )
    next(trainer.descent.slack_parameters()).data.fill_(0.3)
    trainer._end_epoch()
    assert trainer.descent.slack.tolist() == pytest.approx([expected] * 3)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_non_finite_number_stops_before_anything_is_updated(tmp_path, where):
    trainer = trainer_for(tmp_path)
    some_updates(trainer, 1)
    if where == "loss":
        head_of(trainer).bias.data[0] = math.nan
    else:
        head_of(trainer).weight.register_hook(lambda gradient: gradient * math.inf)
    before = {**trainer.layerwise.state_dict(), "λ": trainer.descent.multiplier_values}
    before = {name: value.clone() for name, value in before.items()}
    complaint = "loss of layer 1 is not finite" if where == "loss" else "gradient is not finite"
    with pytest.raises(TrainingStoppedError, match=complaint):
        trainer._update(next(trainer._remaining_updates()))
    after = {**trainer.layerwise.state_dict(), "λ": trainer.descent.multiplier_values}
    assert all(torch.equal(before[name].nan_to_num(), after[name].nan_to_num()) for name in before)


def test_a_run_that_blows_up_is_marked_failed_with_its_reason(tmp_path):
    recipe = tiny_recipe("training.learning_rate=1e30", "training.clip_norm=null")
    with pytest.raises(TrainingStoppedError, match=r"learning_rate"):
        train_quietly(recipe, tmp_path)
    info = run_for(recipe, tmp_path).info()
    assert info.status == "failed"
    assert "not finite" in str(info.reason)


def test_too_small_a_batch_for_its_micro_batches_is_refused(tmp_path):
    with pytest.raises(
        UserError, match=r"into 40 micro-batches on 1 processes; lower training\.accumulation"
    ):
        trainer_for(tmp_path, "training.accumulation=40")


def test_the_order_of_examples_depends_on_seed_and_epoch(tmp_path):
    def order(seed: int, epoch: int) -> list[int]:
        trainer = trainer_for(tmp_path)
        trainer.settings = tiny_recipe(seed=seed).settings
        trainer.state.epoch = epoch
        numbers = {example.id: number for number, example in enumerate(trainer.train_examples)}
        return [
            numbers[name]
            for update in trainer._remaining_updates()
            for batch in update
            for name in batch["ids"]
        ]

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)
    assert sorted(order(0, 0)) == list(range(96))


# ---------------------------------------------------------------- what a run leaves


def test_history_is_long_and_whole(trained_run):
    history = trained_run.read_table("history")
    assert list(history.columns) == ["step", "epoch", "split", "layer", "name", "value"]
    train = history[history["split"] == "train"]
    assert set(train["name"]) == {
        *("loss", "violation", "price", "multiplier", "slack", "weight"),
        *("multiplier_norm", "gradient_norm"),
    }
    assert sorted(train["step"].unique()) == [1, 2, 3, 4, 5, 6]
    validation = history[history["split"] == "validation"]
    assert set(zip(validation["epoch"], validation["layer"], strict=True)) == {
        (epoch, layer) for epoch in (1, 2) for layer in (1, 2, 3)
    }


def test_recorded_violations_are_those_of_the_recorded_losses(trained_run):
    history = trained_run.read_table("history")
    first = history[(history["step"] == 1) & (history["split"] == "train")].set_index(
        ["name", "layer"]
    )["value"]
    info = trained_run.finished_info()
    for layer, rate in enumerate(info.rates, 1):
        before = info.reference if layer == 1 else first["loss", layer - 1]
        assert first["violation", layer] == pytest.approx(
            first["loss", layer] - (1 - rate) * before, abs=1e-6
        )


@pytest.mark.parametrize("form", ["linear", "log", "ladder"])
def test_weights_prices_and_the_norm_are_those_of_the_recorded_multipliers(tmp_path, form):
    recipe = tiny_recipe(
        "descent.alpha=0.5", f"descent.form={form}", "descent.dual.learning_rate=0.1"
    )
    history = train_quietly(recipe, tmp_path).read_table("history")
    for _, rows in history[history["split"] == "train"].groupby("step"):
        at = rows.set_index(["name", "layer"])["value"]
        multipliers = [at["multiplier", layer] for layer in (1, 2, 3)]
        passed_on = {"linear": 0.5, "log": 1.0, "ladder": 0.0}[form]
        weights = [
            multipliers[0] - passed_on * multipliers[1],
            multipliers[1] - passed_on * multipliers[2],
            1 + multipliers[2],
        ]
        assert [at["weight", layer] for layer in (1, 2, 3)] == pytest.approx(weights, abs=1e-6)
        prices = [one * at["violation", layer] for layer, one in enumerate(multipliers, 1)]
        assert [at["price", layer] for layer in (1, 2, 3)] == pytest.approx(prices, abs=1e-6)
        assert at["multiplier_norm", 0] == pytest.approx(math.hypot(*multipliers), abs=1e-6)


def test_erm_records_the_last_layer_in_training_and_all_in_validation(tmp_path):
    history = train_quietly(tiny_recipe(objective="erm"), tmp_path).read_table("history")
    losses = history[history["name"] == "loss"]
    assert set(losses[losses["split"] == "train"]["layer"]) == {3}
    assert set(losses[losses["split"] == "validation"]["layer"]) == {1, 2, 3}


def test_the_best_epoch_has_the_lowest_rank(tmp_path, monkeypatch):
    ranks = {1: [0.0, 0.0, math.nan], 2: [0.0, 0.0, 0.5], 3: [0.0, 0.0, 0.4], 4: [1.0, 0.1, 0.0]}
    trainer = trainer_for(tmp_path, "training.epochs=4", "descent.alpha=0.5")
    monkeypatch.setattr(trainer.objective, "rank", lambda *_: ranks[trainer.state.epoch + 1])
    trainer.fit()
    assert trainer.state.best_epoch == 3
    assert trainer.state.best == [0.0, *ranks[3]]


@pytest.mark.parametrize("objective", ["erm", "supervised", "constrained"])
def test_the_best_epoch_of_a_run_is_that_of_its_own_objective(tmp_path, objective):
    resilience = ("descent.form=log", "descent.resilience=decay", "descent.beta=2.0")
    settings = (
        "training.epochs=4",
        "training.learning_rate=0.03",
        "descent.alpha=0.3",
        *resilience,
    )
    run = train_quietly(tiny_recipe(*settings, objective=objective), tmp_path)
    history, info = run.read_table("history"), run.finished_info()
    rows = history[(history["split"] == "validation") & (history["name"] == "loss")]

    def value(losses: list[float]) -> float:
        f = [math.log(loss) for loss in (info.reference, *losses)]
        violations = [after - before - math.log(0.7) for before, after in pairwise(f)]
        resilient = f[-1] + sum(max(violation, 0) ** 2 for violation in violations)
        return {"erm": f[-1], "supervised": sum(f[1:]) / 3, "constrained": resilient}[objective]

    values = {epoch: value(losses["value"].tolist()) for epoch, losses in rows.groupby("epoch")}
    assert info.best.epoch == min(values, key=lambda epoch: values[epoch])


def test_a_warm_up_epoch_is_best_only_while_there_is_no_other(tmp_path):
    recipe = tiny_recipe(
        "descent.alpha=0.9",
        "descent.warmup_epochs=2",
        "training.epochs=3",
        "training.learning_rate=0.01",
    )
    info = train_quietly(recipe, tmp_path).finished_info()
    assert info.best.epoch == 3
    assert not info.feasible


def test_a_run_keeps_both_weights_and_both_multipliers_and_is_judged_by_the_selected(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("cudt.method.objectives.Constrained.rank", lambda *_: [0.0])
    settings = (
        "descent.alpha=0.5",
        "descent.resilience=slack",
        "descent.beta=1.0",
        "training.epochs=3",
    )
    runs = {
        which: train_quietly(tiny_recipe(*settings, f"training.select={which}"), tmp_path)
        for which in EPOCHS
    }
    for run in runs.values():
        weights = {which: load_file(run.weights_file(which)) for which in EPOCHS}
        assert any(
            not torch.equal(weights["best"][name], weights["last"][name])
            for name in weights["best"]
        )
        multipliers = (
            run.read_table("history").query("name == 'multiplier'").groupby("epoch").tail(3)
        )
        by_epoch = {epoch: rows["value"].tolist() for epoch, rows in multipliers.groupby("epoch")}
        assert run.finished_info().multipliers == MultiplierInfo(best=by_epoch[1], last=by_epoch[3])
    for which, epoch in EPOCHS.items():
        run, info = runs[which], runs[which].finished_info()
        losses = run.read_table("history").query(
            f"split == 'validation' and name == 'loss' and epoch == {epoch}"
        )
        assert info.best.epoch == epoch
        assert [row.loss for row in info.verdicts] == pytest.approx(losses["value"].tolist())
        assert run.read_table("layers")["loss"].tolist() == [row.loss for row in info.verdicts]
    # The slacks of the epoch that is judged, as they were before they restarted.
    slacks = {
        which: [row.slack for row in run.finished_info().verdicts] for which, run in runs.items()
    }
    assert min(max(slack) for slack in slacks.values()) > 0
    assert slacks["best"] != slacks["last"]
