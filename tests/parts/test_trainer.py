"""One update, the best weights, early stopping, the history, and what a run leaves."""

from __future__ import annotations

import math
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.optim.lr_scheduler import LambdaLR

from cudt.config import recipe as recipes
from cudt.config.schema import Training
from cudt.models.layer_losses import Measurement
from cudt.runs.info import MultiplierInfo
from cudt.runs.run import Run, run_for
from cudt.training import train as training
from cudt.training import trainer as trainers
from cudt.training.optimizer import learning_rate_share
from cudt.training.trainer import Trainer
from cudt.utils.device import accelerator_for, survive_torchvision_mismatch
from cudt.utils.errors import TrainingPrunedError, TrainingStoppedError, UserError
from tests.conftest import quiet, tiny_recipe, train_quietly

CPU = torch.device("cpu")


def trainer_for(out: Path, *settings: str, objective: str = "constrained") -> Trainer:
    recipe = tiny_recipe(*settings, objective=objective)
    objects = training.assemble(recipe, None, CPU)
    trainer = Trainer(run_for(recipe, out), *objects, accelerator_for("cpu", "fp32"), quiet())
    trainer.run.path.mkdir(parents=True, exist_ok=True)
    trainer._begin()
    return trainer


def step_plainly(trainer: Trainer, rate: float) -> None:
    """Let a trainer step down the gradient itself, without Adam."""
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=rate)
    trainer.descent.add_slack_to(trainer.optimizer)
    trainer.schedule = LambdaLR(trainer.optimizer, lambda update: 1.0)


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


def test_windows_of_a_clip_are_one_measurement_unless_it_is_the_only_clip(tmp_path):
    for clips, ids in ((2, ["clip-0", "clip-1"]), (1, ["clip-0/0", "clip-0/4"])):
        sizes = [f"task.validation={clips}", "task.frames=4", "task.clip_length=8"]
        video = recipes.load("smoke-video", sizes)
        objects, accelerator = training.assemble(video, None, CPU), accelerator_for("cpu", "fp32")
        trainer = Trainer(run_for(video, tmp_path), *objects, accelerator, quiet())
        trainer.progress.sigma_x = 1.0
        assert trainer.measure_validation().ids == [f"validation/{name}" for name in ids]


# ---------------------------------------------------------------- one update


def test_layers_that_weigh_nothing_are_not_back_propagated_and_the_step_is_the_same(tmp_path):
    def step(reads: list[set[int]]) -> dict[str, torch.Tensor]:
        trainer = trainer_for(tmp_path, "training.clip_norm=null", "descent.form=linear")
        trainer.descent.multiplier_values.copy_(torch.tensor([0.0, 0.0, 1.5]))
        forward = trainer.wrapped.forward

        def watched(batch, noise, layers, thinned, constant):
            reads.append(constant)
            kept = constant if len(reads) > 1 else ()
            return forward(batch, noise, layers, thinned, kept)

        trainer.wrapped.forward = watched
        trainer._update(next(trainer._remaining_updates()))
        return weights_of(trainer)

    reads: list[set[int]] = []
    with_gradients, without = step(reads), step(reads)
    assert reads == [{1}, {1}]
    for name, value in with_gradients.items():
        assert torch.allclose(value, without[name], atol=1e-7), name


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_non_finite_number_stops_before_anything_is_updated(tmp_path, where):
    trainer = trainer_for(tmp_path)
    trainer._update(next(trainer._remaining_updates()))
    head: Any = trainer.model.head
    if where == "loss":
        head.bias.data[0] = math.nan
    else:
        head.weight.register_hook(lambda gradient: gradient * math.inf)

    def state() -> dict[str, torch.Tensor]:
        values = {**trainer.layerwise.state_dict(), "λ": trainer.descent.multiplier_values}
        return {name: value.nan_to_num().clone() for name, value in values.items()}

    before = state()
    what = "the loss of layer 1" if where == "loss" else "the gradient"
    with pytest.raises(TrainingStoppedError, match=f"update 2: {what} is not finite"):
        trainer._update(next(trainer._remaining_updates()))
    assert all(torch.equal(value, before[name]) for name, value in state().items())


def test_a_run_that_blows_up_is_marked_failed_with_its_reason(tmp_path):
    recipe = tiny_recipe("training.learning_rate=1e30", "training.clip_norm=null")
    with pytest.raises(TrainingStoppedError, match=r"learning_rate \(now 1e\+30\)"):
        train_quietly(recipe, tmp_path)
    info = run_for(recipe, tmp_path).info()
    assert info.status == "failed"
    assert "not finite" in str(info.reason)


# ---------------------------------------------------------------- learning rates


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 4])
def test_a_schedule_is_that_of_transformers_without_its_first_rate_of_0(schedule, warmup):
    survive_torchvision_mismatch()
    from transformers import get_scheduler

    skipped = min(1, warmup)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    theirs = get_scheduler(schedule, optimizer, warmup, 10 + skipped)
    rates = []
    for _ in range(10 + skipped):
        rates += theirs.get_last_lr()
        optimizer.step()
        theirs.step()
    settings = {"schedule": schedule, "warmup_share": warmup / 10}
    share = learning_rate_share(Training.model_validate(settings), 10)
    assert [share(update) for update in range(10)] == pytest.approx(rates[skipped:], abs=1e-12)


def test_the_readout_steps_with_its_own_learning_rate(tmp_path):
    rates = ("training.learning_rate=1e-3", "training.readout_learning_rate=1e-2")
    trainer = trainer_for(tmp_path, *rates, "training.clip_norm=null")
    before = weights_of(trainer)
    trainer._update(next(trainer._remaining_updates()))
    # The first step of Adam is as long as its learning rate.
    for name, weight in weights_of(trainer).items():
        expected = 1e-2 if name.startswith("head.") else 1e-3
        assert (weight - before[name]).abs().max() == pytest.approx(expected, rel=1e-2), name


# ---------------------------------------------------------------- the best weights, early stopping


def with_last_losses(patch: pytest.MonkeyPatch, *losses: float) -> None:
    """Let validations find these losses of the last layer, by the order of their updates."""
    seen: dict[int, float] = {}
    measure = Trainer.measure_validation

    def measured(trainer: Trainer) -> Measurement:
        found, step = measure(trainer), trainer.progress.step
        found.losses[-1] = seen.setdefault(step, losses[min(len(seen), len(losses) - 1)])
        return found

    patch.setattr(Trainer, "measure_validation", measured)


def validations(run: Run) -> list[int]:
    """The updates of the validations in history.csv."""
    rows = run.read_table("history").query("split == 'validation' and name == 'loss'")
    return rows[rows["layer"] == 1]["step"].tolist()


@pytest.mark.parametrize("objective", ["erm", "supervised", "constrained"])
def test_the_best_epoch_has_the_lowest_loss_of_the_last_layer(tmp_path, monkeypatch, objective):
    with_last_losses(monkeypatch, math.nan, 0.5, 0.4, 0.4)
    changes = ("training.epochs=4", "descent.alpha=0.5", f"objective={objective}")
    trainer = trainer_for(tmp_path, *changes)
    trainer.fit()
    assert trainer.progress.best_epoch == 3
    assert trainer.progress.best == pytest.approx([0.0, 0.4])


def test_warm_up_has_no_multipliers_and_is_best_only_while_there_is_no_other(tmp_path):
    hard = ("descent.alpha=0.9", "descent.warmup_epochs=2", "training.epochs=3")
    run = train_quietly(tiny_recipe(*hard, "training.learning_rate=0.01"), tmp_path)
    assert run.finished_info().best.epoch == 3
    multipliers = run.read_table("history").query("name == 'multiplier'")
    assert set(multipliers["epoch"]) == {3}
    assert multipliers["value"].max() > 0


@pytest.mark.parametrize(("select", "epoch"), [("best", 1), ("last", 3)])
def test_a_run_keeps_both_weights_and_is_judged_by_the_selected(tmp_path, select, epoch):
    slack = ("descent.alpha=0.5", "descent.resilience=slack", "descent.beta=1.0")
    # At this rate the first epoch is the best.
    recipe = tiny_recipe(
        *slack, "training.epochs=3", "training.learning_rate=0.03", f"training.select={select}"
    )
    run = train_quietly(recipe, tmp_path)
    best, last = (load_file(run.checkpoints / f"{one}.safetensors") for one in ("best", "last"))
    assert any(not torch.equal(best[name], last[name]) for name in best)
    history, info = run.read_table("history"), run.finished_info()
    ends = history.groupby(["name", "split", "epoch"])["value"].apply(lambda one: [*one[-3:]])
    of_epoch = {number: ends["multiplier", "train", number] for number in (1, 3)}
    assert info.multipliers == MultiplierInfo(best=of_epoch[1], last=of_epoch[3])
    assert info.best.epoch == epoch
    losses = [one.loss for one in info.verdicts]
    assert losses == pytest.approx(ends["loss", "validation", epoch])
    assert run.read_table("layers")["loss"].tolist() == losses
    # The slacks of the epoch that is judged, as they were before they restarted.
    slacks = [one.slack for one in info.verdicts]
    assert slacks == pytest.approx(ends["slack", "train", epoch])
    assert max(slacks) > 0


@pytest.mark.parametrize("keep", ["best", "last", "none-when-finished"])
def test_a_finished_run_keeps_the_weights_that_its_recipe_names(tmp_path, keep):
    select = "last" if keep == "last" else "best"
    recipe = tiny_recipe(f"checkpoints.keep={keep}", f"training.select={select}")
    run = train_quietly(recipe, tmp_path)
    kept = [] if keep == "none-when-finished" else [f"{keep}.safetensors"]
    assert [path.name for path in run.checkpoints.iterdir()] == kept
    if not kept:
        with pytest.raises(UserError, match=r"not kept \(checkpoints.keep: none-when-finished\)"):
            training.load(run, "cpu", None)


def test_validating_within_epochs_chooses_weights_and_does_not_change_training(tmp_path):
    slack = ("descent.alpha=0.3", "descent.resilience=slack", "descent.beta=1.0")
    often = train_quietly(tiny_recipe(*slack, "training.validate_every=2"), tmp_path)
    never = train_quietly(tiny_recipe(*slack), tmp_path)
    # Three updates an epoch.
    assert (validations(often), validations(never)) == ([2, 3, 5, 6], [3, 6])
    assert often.weights_file("last").read_bytes() == never.weights_file("last").read_bytes()
    rows = [run.read_table("history").query("split == 'train'") for run in (often, never)]
    assert rows[0].to_csv(index=False) == rows[1].to_csv(index=False)


def test_training_stops_after_validations_without_better_weights(tmp_path, monkeypatch):
    with_last_losses(monkeypatch, 0.5, 0.4, 0.4, 0.6, 0.1)
    settings = ("training.epochs=5", "training.validate_every=2", "training.early_stopping=2")
    run = train_quietly(tiny_recipe(*settings), tmp_path)
    info = run.finished_info()
    assert validations(run) == [2, 3, 5, 6]
    assert info.best.step == 3
    assert info.stopped_early == 6
    counts = run.read_table("history").query("name == 'validations_since_best'")["value"]
    assert counts.tolist() == [0, 0, 1, 2]


# ---------------------------------------------------------------- history


@pytest.mark.parametrize("form", ["linear", "log", "ladder"])
def test_recorded_violations_prices_and_weights_follow_from_losses_and_multipliers(tmp_path, form):
    hard = ("descent.alpha=0.5", f"descent.form={form}", "descent.dual.learning_rate=0.1")
    run = train_quietly(tiny_recipe(*hard), tmp_path)
    rows, reference = run.read_table("history"), run.finished_info().reference
    assert [*rows.columns] == ["step", "epoch", "split", "layer", "name", "value"]
    by_layer = {"loss", "violation", "price", "multiplier", "slack", "weight"}
    names = set(rows[rows["split"] == "train"]["name"])
    assert names == by_layer | {"multiplier_norm", "gradient_norm"}
    for _, one in rows[rows["split"] == "train"].groupby("step"):
        at = one.set_index(["name", "layer"])["value"]
        f = [reference, *(at["loss", layer] for layer in (1, 2, 3))]
        g = {
            "linear": [after - before / 2 for before, after in pairwise(f)],
            "log": [math.log(2 * after / before) for before, after in pairwise(f)],
            "ladder": [loss - reference / 2**layer for layer, loss in enumerate(f)][1:],
        }[form]
        λ = [at["multiplier", layer] for layer in (1, 2, 3)]
        passed = {"linear": 0.5, "log": 1.0, "ladder": 0.0}[form]
        w = [λ[0] - passed * λ[1], λ[1] - passed * λ[2], 1 + λ[2]]
        expected = {"violation": g, "weight": w}
        expected["price"] = [one * two for one, two in zip(λ, g, strict=True)]
        for name, values in expected.items():
            assert [at[name, layer] for layer in (1, 2, 3)] == pytest.approx(values, abs=1e-5)
        assert at["multiplier_norm", 0] == pytest.approx(math.hypot(*λ), abs=1e-6)


# ---------------------------------------------------------------- precision, trackers, the folder


def test_updates_in_bf16_are_close_to_fp32_and_validation_is_in_fp32(tmp_path, monkeypatch):
    seen: dict[bool, set[torch.dtype]] = {True: set(), False: set()}
    linear = torch.nn.functional.linear

    def watched(*given: torch.Tensor) -> torch.Tensor:
        made = linear(*given)
        seen[torch.is_grad_enabled()].add(made.dtype)
        return made

    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    fp32, bf16 = (
        train_quietly(tiny_recipe(f"training.precision={one}", objective="erm"), tmp_path)
        for one in ("fp32", "bf16")
    )
    assert seen == {True: {torch.float32, torch.bfloat16}, False: {torch.float32}}
    losses = [run.read_table("history").query("name == 'loss'")["value"] for run in (fp32, bf16)]
    assert losses[1].tolist() == pytest.approx(losses[0].tolist(), rel=2**-5)
    assert {one.dtype for one in load_file(bf16.weights_file("last")).values()} == {torch.float32}


def test_tensorboard_has_history_value_by_value_and_the_verdict(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = training.train(tiny_recipe(), tmp_path, "cpu", None, quiet(), track=["tensorboard"])
    folder = tmp_path / "trackers" / run.path.name / "reviews-ut"
    events = EventAccumulator(str(folder))
    events.Reload()
    expected: dict[str, list[Any]] = {"feasible": [(6, run.finished_info().feasible)]}
    for step, _, split, layer, name, value in run.read_table("history").values.tolist():
        group = name if split == "train" else f"{name}_validation"
        key = f"{group}/layer_{layer:02}" if layer else group
        expected.setdefault(key, []).append((step, pytest.approx(value, rel=1e-6)))
    for name, values in expected.items():
        assert [(one.step, one.value) for one in events.Scalars(name)] == values, name


def test_the_seconds_of_training_are_without_interruptions(tmp_path, monkeypatch):
    def prune(run: Run) -> None:
        raise TrainingPrunedError("after an epoch")

    ticks = count(0, 10)
    monkeypatch.setattr(trainers, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    with pytest.raises(TrainingPrunedError):
        training.train(tiny_recipe(), tmp_path, "cpu", None, quiet(), after_epoch=prune)
    assert run_for(tiny_recipe(), tmp_path).info().seconds == 10
    next(ticks)
    # The second of two epochs.
    assert train_quietly(tiny_recipe(), tmp_path).info().seconds == 20


def test_run_json_says_how_a_run_was_made_and_repeats_it(trained_run, tmp_path):
    info = trained_run.finished_info()
    assert {"cudt", "torch", "cooper-optim"} <= set(info.versions)
    words = info.command.split()
    assert words[:3] == ["cudt", "train", "--recipe"]
    again = recipes.load(words[3])
    assert again.identity() == trained_run.recipe.identity()


def test_other_data_than_the_run_was_started_with_are_refused(tmp_path):
    run = train_quietly(tiny_recipe(), tmp_path)
    run.update_info(run.info().model_copy(update={"status": "interrupted", "training_data": "x"}))
    with pytest.raises(UserError, match="was started with other training data"):
        train_quietly(tiny_recipe(), tmp_path)


def test_a_loaded_run_has_the_verdicts_losses(trained_run):
    layerwise, info = training.load(trained_run, "cpu", None), trained_run.finished_info()
    assert not layerwise.training
    assert training.sigma_of(trained_run, layerwise) == info.sigma_x.evaluation
    _, objective = training.assemble(trained_run.recipe, None, CPU)
    accelerator = accelerator_for("cpu", "fp32")
    trainer = Trainer(trained_run, layerwise, objective, accelerator, quiet())
    trainer.progress.sigma_x = info.sigma_x.training
    losses = [one.loss for one in info.verdicts]
    assert trainer.measure_validation().layer_losses.tolist() == losses
