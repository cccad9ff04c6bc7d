"""Evaluation under noise: tables against the model on one example after the other, and what is skipped."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import cudt
from cudt.config import recipe as recipes
from cudt.config.recipe import other_data
from cudt.data.loader import batches
from cudt.evaluation import evaluate as evaluation
from cudt.evaluation.evaluate import Grid, check, evaluate_ood, missing
from cudt.models.layer_losses import draw_noise
from cudt.noise import NoiseSource
from cudt.runs.info import RunInfo
from cudt.runs.run import EXAMPLES, Run, open_run
from cudt.training.train import load
from cudt.utils.errors import UserError
from tests.conftest import tiny_recipe, train_quietly

CPU = torch.device("cpu")


def untracked(items: Any, total: int, what: str) -> Any:
    return items


def evaluate(run: Run, grid: Grid | None = None) -> bool:
    grid = grid or Grid()
    check(run, grid)
    return evaluate_ood(run, grid, "cpu", None, untracked)


@pytest.fixture
def run(trained_run: Run, tmp_path: Path) -> Run:
    return open_run(Path(shutil.copytree(trained_run.path, tmp_path / "run")))


@torch.no_grad()
def literal(run: Run, gamma: float, seed: int, precision: str = "fp32") -> list[dict[str, Any]]:
    """Each test example by itself, at every layer."""
    layerwise, found = load(run, "cpu", None), []
    model, task = layerwise.model, layerwise.task
    noise = NoiseSource("gaussian", run.finished_info().sigma_x.evaluation, seed)
    for batch in batches(task, task.examples("test"), 1, CPU):
        row: dict[str, Any] = {"id": batch["ids"][0]}
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            clean, mask = model.signal(batch)
            signal = clean + gamma * draw_noise(batch, clean, mask, noise)
            for layer, state in enumerate(model.layer_states(signal, batch), 1):
                answer = model.readout(state, batch).double()
                row[f"loss_{layer}"] = task.losses(answer, batch).item()
                row[f"score_{layer}"] = task.scores(answer, batch).item()
                row[f"confidence_{layer}"] = answer.softmax(-1).max().item()
                row[f"predicted_{layer}"] = answer.argmax().item()
        found.append(row)
    return sorted(found, key=lambda one: one["id"])


def test_every_example_has_at_every_layer_what_it_has_alone(run):
    evaluate(run, Grid([0.0, 1.0], noise_seeds=[3]))
    for gamma in (0.0, 1.0):
        expected = pd.DataFrame(literal(run, gamma, 3))
        found = run.read_examples(split="test", gamma=gamma)
        assert found["id"].tolist() == found["group"].tolist() == expected["id"].tolist()
        for column in expected.columns[1:]:
            assert found[column].tolist() == pytest.approx(expected[column].tolist(), abs=1e-5)
            is_class = column.startswith("predicted")
            assert found[column].dtype == ("int16" if is_class else "float32")
        assert (found["weight"] == 1).all()


def test_tables_are_the_means_of_the_examples(run):
    evaluate(run, Grid(perturbations=["gaussian", "uniform"], noise_seeds=[0, 3]))
    ood, layers, examples = run.rows("ood"), run.rows("layers"), run.read_examples()
    # Three levels of two kinds with two draws; γ_train = 0.4 is measured, but was not asked for.
    assert (len(ood), len(layers), {*ood["n"]}) == (2 * 3 * 2, 2 * 4 * 2 * 3, {40})
    means = examples.groupby(["noise", "gamma", "seed"]).mean(numeric_only=True)
    for row in ood.itertuples():
        assert row.value == pytest.approx(means.loc[row.noise, row.gamma, row.seed]["score_3"])
    for row in layers.itertuples():
        mine = means.loc[row.noise, row.gamma, row.seed]
        assert row.loss == pytest.approx(mine[f"loss_{row.layer}"], rel=1e-6)
        assert row.metric == pytest.approx(mine[f"score_{row.layer}"])


def test_bf16_measures_what_autocast_computes(tmp_path):
    run = train_quietly(tiny_recipe("evaluation.precision=bf16"), tmp_path)
    evaluate(run)
    layers = run.rows("layers")
    rows = layers[layers["gamma"] == 1].sort_values("layer")
    in_bf16, in_fp32 = (
        pd.DataFrame(literal(run, 1.0, 0, precision))[["loss_1", "loss_2", "loss_3"]].mean()
        for precision in ("bf16", "fp32")
    )
    # Padding changes the order of sums, and with it the last of the eight bits of bf16.
    assert rows["loss"].tolist() == pytest.approx(in_bf16.tolist(), rel=3e-3)
    assert rows["loss"].tolist() != pytest.approx(in_fp32.tolist(), rel=1e-6)


def test_without_examples_the_tables_are_the_same(run):
    evaluate(run)
    settings = run.recipe.settings
    without = settings.evaluation.model_copy(update={"examples": "none"})
    changed = settings.model_copy(update={"evaluation": without})
    other = Run(run.path.with_name("other"), cudt.NamedRecipe(run.recipe.name, changed))
    shutil.copytree(run.path, other.path)
    other.delete("ood.csv", EXAMPLES)
    assert evaluate(other)
    assert not (other.path / EXAMPLES).exists()
    assert other.rows("ood").equals(run.rows("ood"))
    assert missing(other, Grid()) == {}


def test_levels_that_the_tables_have_are_skipped_and_again_repeats_them(run):
    assert evaluate(run)
    before = (run.path / "ood.csv").read_bytes()
    assert not evaluate(run)
    assert evaluate(run, Grid([0.0, 1.0], again=True))
    assert (run.path / "ood.csv").read_bytes() == before
    assert missing(run, Grid([0.5, 2.0])) == {"gaussian": [2.0]}
    assert missing(run, Grid([0.4])) == {"gaussian": [0.4]}
    assert evaluate(run, Grid([0.5, 2.0]))
    assert sorted(run.rows("ood")["gamma"]) == [0, 0.5, 1, 2]
    assert not run.read_examples().duplicated(["gamma", "seed", "id"]).any()


def test_one_curve_never_mixes_noise_seeds(run):
    evaluate(run, Grid(perturbations=["gaussian", "uniform"]))
    evaluate(run, Grid([0.0, 1.0], perturbations=["gaussian"], noise_seeds=[1, 2]))
    for table in (run.rows("ood"), run.rows("layers"), run.read_examples()):
        of_kind = dict(iter(table.groupby("noise")))
        assert set(of_kind["gaussian"]["seed"]) == {1, 2}
        assert set(of_kind["uniform"]["seed"]) == {0}
        assert {0.0, 1.0} <= set(of_kind["gaussian"]["gamma"]) <= {0.0, 0.4, 1.0}
        assert {0.0, 0.5, 1.0} <= set(of_kind["uniform"]["gamma"])


@pytest.mark.parametrize("table", ["_add_examples", "_add"])
def test_an_evaluation_that_is_killed_between_its_tables_is_repeated(run, monkeypatch, table):
    evaluate(run, Grid([0.0, 1.0, 2.0], noise_seeds=[0]))
    other, real, calls = Grid([0.0, 1.0], noise_seeds=[5]), getattr(evaluation, table), list[int]()

    def killed(*given: Any) -> None:
        calls.append(1)
        # Of the two calls of `_add`, the second is for ood.csv.
        if table == "_add_examples" or len(calls) == 2:
            raise KeyboardInterrupt
        real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, table, killed)
        with pytest.raises(KeyboardInterrupt):
            evaluate(run, other)
    assert evaluate(run, other)
    for rows in (run.rows("ood"), run.rows("layers"), run.read_examples(split="test")):
        assert {*zip(rows["gamma"], rows["seed"], strict=True)} - {(0.4, 5)} == {(0, 5), (1, 5)}
    assert not evaluate(run, other)


def test_runs_that_cannot_be_evaluated_are_refused(run):
    for grid, message in (
        (Grid(perturbations=["discrete"]), "noise 'discrete' changes texts"),
        (Grid(n_samples=1), "pictures need a video task"),
    ):
        with pytest.raises(UserError, match=message):
            check(run, grid)
    run.update_info(RunInfo(test_data="another"))
    with pytest.raises(UserError, match="other test data or tokenizer"):
        evaluate(run)
    run.update_info(RunInfo(status="failed"))
    with pytest.raises(UserError, match="is failed, not finished"):
        check(run, Grid())


def test_other_weights_are_evaluated_as_those_of_a_run_that_selected_them(tmp_path):
    # At this rate the first epoch is the best.
    rate = "training.learning_rate=0.03"
    best = train_quietly(tiny_recipe(rate), tmp_path)
    last = train_quietly(tiny_recipe(rate, "training.select=last"), tmp_path)
    evaluate(best)
    before = best.rows("ood")
    evaluate(best.with_weights("last"))
    evaluate(last)
    assert best.rows("ood").equals(before)
    for name in ("ood", "layers"):
        mine = best.with_weights("last").rows(name).reset_index(drop=True)
        # The signal of this model is learned, so each epoch has its own σ_x.
        pd.testing.assert_frame_equal(mine, last.rows(name), rtol=1e-6)
    assert not before["value"].equals(last.rows("ood")["value"])
    counts = best.read_examples(split="test").groupby("weights").size()
    assert counts["best"] == counts["last"]


@pytest.fixture(scope="module")
def video(tmp_path_factory) -> Run:
    """A run on videos of three clips."""
    changes: dict[str, Any] = {"task.test": 3, "evaluation.gammas": [0.1, 0.5]}
    changes |= {"training.epochs": 1, "descent.warmup_epochs": 0}
    return train_quietly(recipes.load("smoke-video", changes), tmp_path_factory.mktemp("video"))


def test_a_run_is_tested_on_other_data_with_its_own_noise(video, tmp_path):
    run = open_run(Path(shutil.copytree(video.path, tmp_path / "run")))
    file = tmp_path / "others.yaml"
    file.write_text("base: smoke-video\ntask: {test: 2, size: 64}\n")
    other = other_data(run.recipe.settings.task, str(file))
    # The shape of its frames is that of the run.
    assert (other.name, other.task.model_dump()["size"]) == ("others", 32)
    evaluate(run)
    evaluate(run, Grid(on=other))
    assert run.rows("ood")["n"].nunique() == run.rows("layers")["gamma"].nunique() - 1 == 1
    tested = Grid(on=other).of(run)
    assert tested.rows("ood")["value"].tolist() != run.rows("ood")["value"].tolist()
    assert run.info().other_tests["others"].task["test"] == 2
    sigma = run.finished_info().sigma_x.evaluation
    # The error of the noisy input itself is that of the noise.
    inputs = tested.rows("ood").set_index("gamma")["input"]
    assert inputs[0.5] == pytest.approx(0.5 * sigma, rel=0.03)
    assert not evaluate(run, Grid(on=other))
    with pytest.raises(UserError, match="cannot be tested on data of task reviews"):
        other_data(run.recipe.settings.task, "smoke-text")


def test_pictures_show_the_clean_and_the_noisy_frame_and_every_layer(video, tmp_path):
    from PIL import Image

    run = open_run(Path(shutil.copytree(video.path, tmp_path / "run")))
    evaluate(run, Grid(n_samples=2))
    files = sorted((run.path / "extra" / "samples").iterdir())
    assert len(files) == 2
    example = load(run, "cpu", None).task.examples("test")[0]
    with Image.open(files[0]) as picture:
        shown = np.asarray(picture.convert("L"), dtype=int)
    # Two levels, and clean, noisy and three layers, with frames of 32 pixels.
    assert shown.shape == (2 * 36 + 4, 5 * 36 + 4)
    middle = example.frames[len(example.frames) // 2]
    assert np.abs(shown[4:36, 4:36] - middle).max() <= 1
    run.check(files[0].relative_to(run.path).as_posix())
    assert missing(run, Grid(n_samples=2)) == {}
    assert missing(run, Grid(n_samples=3)) == {"samples": []}
