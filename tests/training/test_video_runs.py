"""Whole runs on generated videos, from a recipe to pictures on a page."""

from __future__ import annotations

import math
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from cudt.evaluation.grid import Grid

from cudt.config import recipe
from cudt.data.loader import batches
from cudt.evaluation.evaluate import check, evaluate_ood
from cudt.evaluation.intervals import bootstrap_of_clips, clips_of
from cudt.models.assemble import assemble
from cudt.models.layer_losses import draw_noise
from cudt.noise import NoiseSource
from cudt.runs.info import MetricInfo
from cudt.runs.run import Run, open_run
from cudt.training import launch
from cudt.training.checkpoint import load_weights
from cudt.training.trained import load
from tests.conftest import quiet
from tests.measured import measure
from tests.pretrained import tiny_vision
from tests.shapes import write_recipe

CPU = torch.device("cpu")
MODELS = ["dust", "ut", "vit"]
OBJECTIVES = ["constrained", "erm"]
Finished = dict[tuple[str, str], Run]


@pytest.fixture(scope="module")
def recipes(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("recipes")
    sections = {
        "dust": "{name: dust, layers: 2, patch: 4, atoms: 6}",
        "ut": "{name: unrolled_video, layers: 2, patch: 4, atoms: 6}",
        "vit": f"{{name: vit, pretrained: {tiny_vision(folder / 'vit', num_hidden_layers=2)}}}",
    }
    return {name: write_recipe(folder, name, model) for name, model in sections.items()}


def train(path: Path, out: Path, *overrides: str, objective: str = "constrained") -> Run:
    torch.set_num_threads(1)
    return launch.train(
        recipe.load(str(path), overrides, objective=objective), out, "cpu", None, quiet()
    )


def evaluate(run: Run, grid: Grid | None = None, n_samples: int = 0) -> pd.DataFrame:
    grid = grid or Grid()
    check(run, grid, n_samples)
    evaluate_ood(run, grid, "cpu", None, lambda batches, total, what: batches, n_samples)
    return run.read_table("ood")


@pytest.fixture(scope="module")
def finished(recipes, tmp_path_factory) -> Finished:
    """A run of every model and objective, evaluated, with pictures of a test example."""
    out = tmp_path_factory.mktemp("outputs")
    made = {
        (name, word): train(recipes[name], out, objective=word)
        for name in MODELS
        for word in OBJECTIVES
    }
    for run in made.values():
        evaluate(run, n_samples=1)
    return made


@pytest.fixture
def run(finished, tmp_path) -> Run:
    """A copy of a finished run that was not evaluated."""
    shutil.copytree(finished["dust", "constrained"].path, tmp_path / "run")
    for name in (
        "ood.csv",
        "examples.parquet",
        "layer_metrics.csv",
        "ratios.csv",
        "ratio_bins.csv",
    ):
        (tmp_path / "run" / name).unlink()
    shutil.rmtree(tmp_path / "run" / "samples")
    return open_run(tmp_path / "run")


# ---------------------------------------------------------------- training


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("model", MODELS)
def test_every_model_of_video_trains(finished, model, objective):
    run = finished[model, objective]
    info, history = run.finished_info(), run.read_table("history")
    assert info.layers == len(info.verdicts) == 2
    assert info.metric == MetricInfo(name="RMSE", higher_is_better=False, of_mean="root")
    last = history[
        (history["split"] == "validation") & (history["name"] == "loss") & (history["layer"] == 2)
    ]
    first_epoch, second_epoch = last["value"]
    assert second_epoch < first_epoch


@pytest.mark.parametrize("restart", [True, False])
def test_slacks_grow_after_the_warm_up_and_restart_with_each_epoch(recipes, tmp_path, restart):
    resilient = (
        "descent.resilience=slack",
        "descent.beta=1.0",
        f"descent.slack_restart={str(restart).lower()}",
    )
    harsh = (
        "descent.alpha=0.9",
        "descent.warmup_epochs=1",
        "training.epochs=3",
        "descent.dual.learning_rate=0.5",
    )
    trained = train(recipes["dust"], tmp_path, *resilient, *harsh)
    history = trained.read_table("history")
    history = history[history["split"] == "train"]
    assert set(history[history["epoch"] == 1]["name"]) == {"loss", "gradient_norm"}
    slack = history[(history["name"] == "slack") & (history["layer"] == 2)]
    grown, again = (slack[slack["epoch"] == epoch]["value"].tolist() for epoch in (2, 3))
    assert all(later > earlier >= 0 for earlier, later in pairwise(grown))
    assert (again[0] < grown[-1]) == restart
    assert trained.finished_info().best.epoch > 1
    assert trained.finished_info().verdicts[1].slack > 0


# ---------------------------------------------------------------- numbers


def psnr(rmse: pd.Series) -> list[float]:
    return [20 * math.log10(255 / value) for value in rmse]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("model", MODELS)
def test_every_level_has_rmse_and_psnr_with_their_intervals(finished, model, objective):
    ood = finished[model, objective].read_table("ood")
    values = ood.pivot_table(index="gamma", columns="metric", values="value")
    assert values.index.tolist() == [0, 0.5, 1]
    squares = finished[model, objective].read_examples().groupby("gamma")["score"].mean()
    assert values["RMSE"].tolist() == pytest.approx(squares.pow(0.5).tolist(), rel=1e-14)
    names = [f"{name}{end}" for name in ("RMSE", "PSNR", "loss") for end in ("", "_low", "_high")]
    assert sorted(values.columns) == sorted([*names, "input_RMSE"])
    assert values["PSNR"].tolist() == pytest.approx(psnr(values["RMSE"]))
    assert values["PSNR_low"].tolist() == pytest.approx(psnr(values["RMSE_high"]))
    assert values["loss"].tolist() == pytest.approx((16 * 16 * values["RMSE"] ** 2).tolist())
    for name in ("RMSE", "PSNR", "loss"):
        assert (
            (values[f"{name}_low"] <= values[name]) & (values[name] <= values[f"{name}_high"])
        ).all()


def test_the_metric_is_the_root_of_the_mean_squared_error_of_all_test_pixels(run):
    rmse = evaluate(run, Grid(gammas=[0.5])).set_index("metric")["value"]["RMSE"]
    problem = assemble(run.recipe, None, CPU)
    problem.layerwise.load_learned_weights(load_weights(run))
    task, model = problem.task, problem.layerwise.model
    batch = task.collate(task.examples("test"))
    noise = draw_noise(
        model, batch, NoiseSource("gaussian", run.finished_info().sigma_x.evaluation, 0)
    )
    signal, _ = model.signal(batch)
    with torch.no_grad():
        answer = model.readout(model.layer_states(signal + 0.5 * noise, batch)[-1], batch)
    assert rmse == pytest.approx((answer - signal).double().square().mean().sqrt().item(), rel=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_the_noisy_input_itself_has_the_rmse_of_its_noise(finished, model):
    run = finished[model, "constrained"]
    found = run.read_table("ood").set_index(["metric", "gamma"])["value"]["input_RMSE"]
    problem = assemble(run.recipe, None, CPU)
    batch = problem.task.collate(problem.task.examples("test"))
    sigma_x = run.finished_info().sigma_x.evaluation
    noise = draw_noise(problem.layerwise.model, batch, NoiseSource("gaussian", sigma_x, 0)).double()
    assert found.index.tolist() == [0, 0.5, 1]
    for gamma, rmse in found.items():
        # Noise is not clipped, so the error of a pixel is its noise; of 6,144 pixels its deviation
        # is γ·σ_x to 3 %.
        assert rmse == pytest.approx(gamma * noise.square().mean().sqrt().item(), rel=1e-6)
        assert rmse == pytest.approx(gamma * sigma_x, rel=0.03)


def test_intervals_are_those_over_the_clips_of_the_windows(finished):
    run = finished["dust", "constrained"]
    scores = run.read_examples()
    found = run.read_table("ood").set_index(["metric", "gamma"])["value"]
    for gamma, windows in scores.groupby("gamma"):
        assert windows["id"].str.rsplit("/", n=1).str[0].nunique() == 3
        values, weights = windows["score"].to_numpy(), windows["weight"].to_numpy().astype(float)
        ends = bootstrap_of_clips(values, weights, clips_of(windows["id"].tolist()))
        assert ends is not None
        wanted = [math.sqrt(end) for end in ends]
        assert [found["RMSE_low", gamma], found["RMSE_high", gamma]] == pytest.approx(
            wanted, rel=1e-6
        )


def test_noise_is_the_same_for_every_model_and_batch(finished):
    draws = []
    for model, size in (("dust", 6), ("ut", 1), ("vit", 4)):
        problem = assemble(finished[model, "erm"].recipe, None, CPU)
        task, noise = problem.task, NoiseSource("gaussian", 40.0, 3)
        examples = task.examples("test")
        collated = [task.collate(examples[start : start + size]) for start in range(0, 6, size)]
        draws.append(
            torch.cat([draw_noise(problem.layerwise.model, batch, noise) for batch in collated])
        )
    assert draws[0].shape == (6, 4, 16, 16)
    assert draws[0].std().item() == pytest.approx(40, rel=0.05)
    assert len(draws[0].flatten(1).unique(dim=0)) == 6
    assert all(torch.equal(draw, draws[0]) for draw in draws)


@pytest.mark.parametrize("model", MODELS)
def test_no_number_depends_on_the_batch_size(finished, recipes, model, tmp_path):
    original = finished[model, "constrained"]
    shutil.copytree(original.path, tmp_path / "run")
    again = evaluate(
        Run(tmp_path / "run", recipe.load(str(recipes[model]), ["evaluation.batch_size=1"]))
    )
    assert again["value"].tolist() == pytest.approx(
        original.read_table("ood")["value"].tolist(), rel=1e-5
    )


# ---------------------------------------------------------------- pictures


def test_every_run_has_a_strip_of_the_same_example(finished):
    for run in finished.values():
        assert [path.name for path in (run.path / "samples").iterdir()] == [
            "gaussian-0-test-clip-0-0.png"
        ]


def test_standard_errors_of_the_verdict_are_over_clips(run):
    """By hand: the mean difference of each of the k clips, their standard deviation, divided by
    √k."""
    layerwise, info = load(run, "cpu", None), run.finished_info()
    task, noise = layerwise.task, run.recipe.settings.noise
    source = NoiseSource(noise.kind, info.sigma_x.training, "validation")
    (measured,) = measure(
        layerwise, batches(task, task.examples("validation"), 1, CPU), source, [noise.gamma_train]
    )
    clips = clips_of(measured.ids)
    assert len(set(clips)) == 2
    assert len(clips) == 4
    losses = measured.losses.numpy()
    differences = losses - 0.9 * np.vstack([np.full(4, info.reference), losses[:-1]])
    by_clip = np.stack([differences[:, clips == clip].mean(1) for clip in range(2)], axis=1)
    wanted = by_clip.std(1, ddof=1) / math.sqrt(2)
    assert [one.standard_error for one in info.verdicts] == pytest.approx(wanted.tolist(), rel=1e-4)
