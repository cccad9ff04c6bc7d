"""`cudt eval-ood --on`: a run on the test data of another task."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from cudt.config import recipe as recipes
from cudt.config.tasks import Limit
from cudt.runs.checksums import damaged_files
from cudt.runs.find import find_runs, open_run
from cudt.runs.run import Run
from cudt.tasks import avenue
from cudt.training import train as training
from tests.cli.conftest import CommandLine, call
from tests.conftest import quiet
from tests.tasks.test_video_sets import write_avenue, write_shanghaitech, write_ucsd

__all__ = ["call"]
CPU = ["--device", "cpu"]
TASK = "{name: ucsd, subset: ped2, frames: 3, stride: 1, size: 16, validation_share: 0.3, limit: {test: 2}}"
MODEL = "{layers: 2, patch: 8, atoms: 6}"
LEVELS = "evaluation: {gammas: [0.0, 0.5], batch_size: 4}\nnoise: {gamma_train: 0.5}\ntraining: {epochs: 2}\n"


@pytest.fixture(scope="module")
def trained_video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, trained on UCSD, and its data root."""
    folder = tmp_path_factory.mktemp("other")
    write_ucsd(folder / "data")
    file = folder / "small-ucsd.yaml"
    text = (recipes.folder() / "smoke" / "smoke-video.yaml").read_text().split("task:")[0]
    file.write_text(f"{text}task: {TASK}\nmodel: {{name: dust, {MODEL[1:]}\n{LEVELS}")
    run = training.train(recipes.load(str(file)), folder / "outputs", "cpu", folder / "data", quiet())
    shutil.copytree(run.path, folder / "run")
    return folder


@pytest.fixture
def video(trained_video: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A copy of the run, next to `data` with all three data sets."""
    shutil.copytree(trained_video / "run", tmp_path / "run")
    shutil.copytree(trained_video / "data", tmp_path / "data")
    write_avenue(tmp_path / "data")
    write_shanghaitech(tmp_path / "data")
    monkeypatch.setenv("CUDT_DATA_ROOT", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return open_run(Path("run"))


def noted(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "evaluation.json").read_text())


def value(run: Run, metric: str, gamma: float) -> float:
    table = run.read_table("ood")
    return float(table[(table["metric"] == metric) & (table["gamma"] == gamma)]["value"].iloc[0])


def test_the_model_is_tested_on_the_other_clips_with_the_runs_own_noise(call: CommandLine, video):
    code, output, error = call("eval-ood", "run", "--on", "avenue", *CPU)
    assert (code, error) == (0, "")
    assert "written to run/on-avenue/ood.csv" in output
    tested = open_run(Path("run/on-avenue"))
    assert tested.read_table("ood")["gamma"].unique().tolist() == [0.0, 0.5]
    assert not tested.read_table("layers").empty
    assert not tested.read_table("descent").empty
    # Nothing of it is in the run's own tables.
    assert video.read_table("ood").empty
    assert video.info().evaluated == {}
    # The oracle: the loaded model on the windows that the other task cuts itself.
    config = avenue.Config(name="avenue", frames=3, stride=1, size=16, limit=Limit(test=2))
    task = avenue.build(config, Path("data"), None)
    layerwise = training.load(video, "cpu", None)
    batch = task.collate(task.examples("test"))
    with torch.no_grad():
        *_, last = layerwise.model.layer_states(layerwise.model.signal(batch)[0], batch)
        error_of = layerwise.model.readout(last, batch).double() - batch["frames"]
    assert value(tested, "RMSE", 0.0) == pytest.approx(
        float(error_of.square().mean().sqrt()), rel=1e-5
    )
    # The noise has the standard deviation γ·σ_x of the run's training data.
    sigma, other_sigma = (
        video.finished_info().sigma_x.evaluation,
        float(batch["frames"].double().std()),
    )
    assert value(tested, "input_RMSE", 0.5) == pytest.approx(0.5 * sigma, rel=0.05)
    assert other_sigma != pytest.approx(sigma, rel=0.2)


def test_the_folder_says_which_data_its_results_are_of(call: CommandLine, video):
    assert call("eval-ood", "run", "--gammas", "0.5", *CPU)[0] == 0
    assert call("eval-ood", "run", "--on", "avenue", "--gammas", "0.5", *CPU)[0] == 0
    written = noted(Path("run/on-avenue"))
    # Size, frames and limits of the run; `subset` is a key of its own task alone.
    own = {**video.recipe.settings.task.model_dump(mode="json"), "name": "avenue"}
    assert written["other_task"] == {key: value for key, value in own.items() if key != "subset"}
    assert written["other_task"]["limit"]["test"] == 2
    assert written["test_data"] not in (None, video.info().test_data)
    # Its name stands for the data, also without --on.
    before = (Path("run/on-avenue") / "ood.csv").read_bytes()
    assert call("eval-ood", "run/on-avenue", "--gammas", "0.5", *CPU)[0] == 0
    assert (Path("run/on-avenue") / "ood.csv").read_bytes() == before
    assert "on-avenue" in call("compare", "run", "run/on-avenue")[1]
    # It is not a run of its own.
    assert find_runs([Path()]) == [Path("run")]
    (Path("run/on-avenue") / "ood.csv").write_text("gone")
    assert [error.path.name for error in damaged_files(Path("run/on-avenue"))] == ["ood.csv"]
