"""A package outside of cudt adds one of each thing, in one file each, and its runs go through every command."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests import processes

HERE = Path(__file__).parent
RECIPE = """
task: {name: toys.signs}
model: {name: toys.residual}
noise: {kind: toys.laplace, gamma_train: 0.2}
descent: {alpha: 0.5, dual: {optimizer: toys.momentum}}
training: {epochs: 2, batch_size: 8, learning_rate: 1e-2}
evaluation: {gammas: [0.0, 0.2, 1.0], perturbations: [toys.laplace, gaussian]}
"""


def cudt(folder: Path, *arguments: str) -> str:
    """What `cudt` prints in a new process; it is forked, because importing torch takes longer than the command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(HERE))
        patch.setenv("COLUMNS", "100")
        (ended,) = processes.commands(1, *arguments)
    assert ended.code == 0, ended.errors
    return ended.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of a recipe whose every part comes from outside, evaluated, with a report."""
    made = tmp_path_factory.mktemp("outside")
    (made / "mine.yaml").write_text(RECIPE)
    objectives = ["--objective", "toys.halves", "--objective", "constrained", "--objective", "erm"]
    cudt(made, "train", "--recipe", "mine.yaml", *objectives)
    cudt(made, "eval-ood", *(str(path) for path in sorted((made / "outputs" / "mine").iterdir())))
    cudt(made, "report", "--figure", "toys.last_losses")
    return made


def test_runs_are_trained_and_evaluated_under_the_outside_noise(folder):
    runs = sorted((folder / "outputs" / "mine").iterdir())
    assert [run.name.rpartition("-")[0] for run in runs] == ["constrained", "erm", "toys.halves"]
    for run in runs:
        layers = pd.read_csv(run / "layers.csv")
        assert set(layers["noise"]) == {"toys.laplace", "gaussian"}
        loss = layers[layers["split"] == "test"].set_index(["noise", "gamma", "layer"])["loss"]
        # Without noise both kinds are the same clean test set; with much of it they are not.
        assert loss["toys.laplace", 0.0, 3] == loss["gaussian", 0.0, 3]
        assert loss["toys.laplace", 1.0, 3] != loss["gaussian", 1.0, 3]
    assert len({tuple(pd.read_csv(run / "layers.csv")["loss"]) for run in runs}) == 3


def test_the_outside_dual_optimiser_moves_the_multipliers(folder):
    (run,) = (folder / "outputs" / "mine").glob("constrained-*")
    assert any(json.loads((run / "run.json").read_text())["multipliers"]["last"])


def test_the_outside_objective_trains_the_layers_that_it_names(folder):
    (run,) = (folder / "outputs" / "mine").glob("toys.halves-*")
    history = pd.read_csv(run / "history.csv")
    trained = history[(history["split"] == "train") & (history["name"] == "loss")]
    assert set(trained["layer"]) == {2, 3}


def test_the_report_shows_the_outside_objective_and_draws_the_outside_figure(folder):
    report = folder / "outputs" / "report"
    table = pd.read_csv(report / "table.csv")
    assert set(table["objective"]) == {"toys.halves", "constrained", "erm"}
    assert "toys.halves" in set(pd.read_csv(report / "paired.csv")["objective"])
    assert (report / "figures" / "mine-last-losses.png").stat().st_size > 1000
    assert "Validation loss of the last layer" in (report / "index.html").read_text()
