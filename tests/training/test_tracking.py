"""Trackers: TensorBoard's files are compared with history.csv, and another tracker is one that
keeps its calls."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from accelerate import tracking as accelerate_tracking
from accelerate.tracking import GeneralTracker
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import cudt
from cudt.runs.run import Run
from cudt.training import launch, tracking
from cudt.training.tracking import TrackingRequest, check_trackers, hyper_parameters
from cudt.utils.errors import UserError
from tests.conftest import quiet, tiny_recipe
from tests.processes import together
from tests.training.test_stopping import RESULTS


class Fake(GeneralTracker):
    """Keeps its calls in a list."""

    name = "fake"
    requires_logging_directory = True
    calls: ClassVar[list[tuple[Any, ...]]] = []

    def __init__(self, project: str, folder: str) -> None:
        super().__init__()
        self.calls.append(("new", project, Path(folder)))

    @property
    def tracker(self) -> None:
        return None

    def start(self) -> None:
        self.calls.append(("start",))

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.calls.append(("settings", values["descent.alpha"]))

    def log(self, values: dict[str, Any], step: int | None = None, **options: Any) -> None:
        self.calls.append(("log", step, values))

    def finish(self) -> None:
        self.calls.append(("finish",))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    monkeypatch.setitem(accelerate_tracking.LOGGER_TYPE_TO_CLASS, "fake", Fake)
    monkeypatch.setattr(Fake, "calls", [])
    return Fake


def train(out: Path, *names: str, group: str | None = None) -> Run:
    return launch.train(
        tiny_recipe(), out, "cpu", None, quiet(), track=TrackingRequest(names, group)
    )


def history(run: Run) -> dict[str, list[tuple[int, float]]]:
    """history.csv by the names of trackers, as TensorBoard keeps it: in 32 bits."""
    found: dict[str, list[tuple[int, float]]] = {}
    with (run.path / "history.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            name = row["name"] if row["split"] == "train" else f"{row['name']}_validation"
            key = name if row["layer"] == "0" else f"{name}/layer_0{row['layer']}"
            found.setdefault(key, []).append((int(row["step"]), float(np.float32(row["value"]))))
    return found


def test_tensorboard_has_history_value_by_value_and_the_verdict(tmp_path):
    run = train(tmp_path, "tensorboard", group="mine-1234")
    events = EventAccumulator(
        str(tmp_path / "trackers" / "mine-1234" / run.path.name / "reviews-ut")
    )
    events.Reload()
    found = {
        name: [(one.step, one.value) for one in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }
    info = run.finished_info()
    holds = {
        f"constraint_holds/layer_{one.layer:02}": one.verdict in ("met", "borderline")
        for one in info.verdicts
    }
    for name, value in {"feasible": info.feasible, "monotone": info.monotone, **holds}.items():
        assert found.pop(name) == [(6, float(value))]
    assert found == history(run)


def test_tracking_changes_neither_the_run_nor_its_folder(tmp_path):
    plain, tracked = train(tmp_path / "plain"), train(tmp_path / "tracked", "tensorboard")
    for name in RESULTS:
        assert (plain.path / name).read_bytes() == (tracked.path / name).read_bytes()
    files = [
        sorted(str(path.relative_to(run.path)) for path in run.path.rglob("*"))
        for run in (plain, tracked)
    ]
    assert files[0] == files[1]
    assert sorted(path.name for path in (tmp_path / "plain").iterdir()) == ["reviews-ut"]


def test_a_tracker_is_started_with_the_recipe_and_finished(fake, tmp_path):
    run = cudt.train(tiny_recipe(), tmp_path, "cpu", quiet=True, track="fake")
    assert fake.calls[:3] == [
        ("new", "reviews-ut", tmp_path / "trackers" / run.path.name),
        ("start",),
        ("settings", 0.1),
    ]
    assert fake.calls[-1] == ("finish",)
    steps = [call[1] for call in fake.calls if call[0] == "log"]
    assert steps == sorted(steps)
    assert set(steps) == {1, 2, 3, 4, 5, 6}


def test_only_the_main_process_sends(fake, tmp_path):
    def n_calls() -> int:
        train(tmp_path, "fake")
        return len(Fake.calls)

    main, other = together(2, n_calls)
    assert main > 0 == other


def test_settings_are_values_that_every_tracker_takes():
    values = hyper_parameters(tiny_recipe("descent.alpha=[0.1, 0.2, 0.3]"))
    assert values["descent.alpha"] == "[0.1, 0.2, 0.3]"
    assert values["descent.beta"] == "null"
    assert {type(value) for value in values.values()} <= {bool, int, float, str}


def test_unknown_and_missing_trackers_are_refused(monkeypatch):
    with pytest.raises(
        UserError, match=r"--track tensorbord: unknown tracker; did you mean 'tensorboard'\?"
    ):
        check_trackers(["tensorbord"])
    monkeypatch.setattr(tracking, "get_available_trackers", list)
    with pytest.raises(UserError, match="--track wandb: not installed; pip install wandb"):
        check_trackers(["wandb"])
