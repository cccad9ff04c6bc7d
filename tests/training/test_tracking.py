"""Trackers: TensorBoard's files are compared with history.csv, and other trackers are one that keeps its calls."""

from __future__ import annotations

import csv
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from accelerate import tracking as accelerate_tracking
from accelerate.tracking import GeneralTracker
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

import cudt
from cudt.runs.find import find_runs, run_for
from cudt.runs.run import Run
from cudt.training import launch, tracker_kinds
from cudt.training.tracker_kinds import check_trackers
from cudt.training.tracking import TrackingRequest, hyper_parameters
from cudt.utils.errors import DataWarning, TrainingInterruptedError, UserError
from tests.conftest import quiet, tiny_recipe
from tests.processes import ending, in_child, together
from tests.training.test_stopping import RESULTS, Stopping

TENSORBOARD = TrackingRequest(("tensorboard",))
SLACK = ("descent.resilience=slack", "descent.beta=1.0", "descent.alpha=0.3")


class Fake(GeneralTracker):
    """Keeps its calls in a list; the sequence of its failures is planted."""

    name = "fake"
    requires_logging_directory = True
    calls: ClassVar[list[tuple[Any, ...]]] = []
    fails: ClassVar[str] = ""

    def __init__(self, project: str, folder: str) -> None:
        super().__init__()
        self.calls.append(("new", project, Path(folder)))

    @property
    def tracker(self) -> None:
        return None

    def start(self) -> None:
        if self.fails == "start":
            raise RuntimeError("no key\nand more lines")
        self.calls.append(("start",))

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.calls.append(("settings", values))

    def log(self, values: dict[str, Any], step: int | None = None, **options: Any) -> None:
        if self.fails == f"log {step}":
            raise OSError("the network is away")
        self.calls.append(("log", step, values))

    def finish(self) -> None:
        self.calls.append(("finish",))

    @classmethod
    def logged(cls) -> list[tuple[int, dict[str, Any]]]:
        return [(call[1], call[2]) for call in cls.calls if call[0] == "log"]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    monkeypatch.setitem(accelerate_tracking.LOGGER_TYPE_TO_CLASS, "fake", Fake)
    monkeypatch.setattr(Fake, "calls", [])
    return Fake


def train(out: Path, track: TrackingRequest, *settings: str) -> Run:
    return launch.train(tiny_recipe(*settings), out, "cpu", None, quiet(), track=track)


def folder_of(run: Run, group: str = "") -> Path:
    return run.path.parents[1] / "trackers" / run.recipe.name / group / run.path.name


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """All that TensorBoard shows of a folder: steps and values by name."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}


def expected(run: Run) -> dict[str, list[tuple[int, float]]]:
    """history.csv by the names of trackers, as TensorBoard keeps it: in 32 bits."""
    found: dict[str, list[tuple[int, float]]] = {}
    with (run.path / "history.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["name"] != "slack" or run.recipe.settings.descent.resilience == "slack":
                name = row["name"] if row["split"] == "train" else f"{row['name']}_validation"
                key = name if row["layer"] == "0" else f"{name}/layer_0{row['layer']}"
                found.setdefault(key, []).append((int(row["step"]), float(np.float32(row["value"]))))
    return found


def conclusion(run: Run) -> dict[str, float]:
    info = run.finished_info()
    holds = {f"constraint_holds/layer_{one.layer:02}": one.verdict in ("met", "borderline") for one in info.verdicts}
    return {"feasible": float(info.feasible), "monotone": float(info.monotone), **holds}


def assert_complete(run: Run, folder: Path) -> None:
    """TensorBoard has every row of history.csv once, and the verdict."""
    found, last = scalars(folder), int(run.read_table("history")["step"].max())
    verdict = {name: found.pop(name) for name in conclusion(run)}
    assert verdict == {name: [(last, value)] for name, value in conclusion(run).items()}
    assert found == expected(run)


# ---------------------------------------------------------------- TensorBoard


@pytest.mark.parametrize(
    "settings", [SLACK, ("objective=erm", "training.validate_every=2", "training.early_stopping=9")]
)
def test_tensorboard_has_history_value_by_value(tmp_path, settings):
    run = train(tmp_path, TENSORBOARD, *settings)
    assert_complete(run, folder_of(run))
    names = {name.split("/")[0] for name in expected(run)}
    constrained = {"violation", "multiplier", "weight", "slack", "price", "multiplier_norm"}
    assert names >= {"loss", "loss_validation", "accuracy_validation", "gradient_norm"}
    assert (names >= constrained) == (settings is SLACK)


def test_tensorboard_has_the_recipe_and_the_verdicts(tmp_path):
    run = train(tmp_path, TENSORBOARD)
    (file,) = folder_of(run).glob("events.*")
    events = EventAccumulator(str(file))
    events.Reload()
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    session = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert session["descent.alpha"].number_value == 0.1
    assert (session["objective"].string_value, session["seed"].number_value) == ("constrained", 0)
    assert session["training.validate_every"].string_value == "null"
    content = events.SummaryMetadata("_hparams_/experiment").plugin_data.content
    shown = plugin_data_pb2.HParamsPluginData.FromString(content).experiment.metric_infos
    assert {one.name.tag for one in shown} == {
        *("feasible", "monotone", "loss_validation/layer_03", "accuracy_validation/layer_03")
    }
    words = {
        f"layer_{one.layer:02}": events.Tensors(f"verdict/layer_{one.layer:02}/text_summary")[0].tensor_proto.string_val
        for one in run.finished_info().verdicts
    }
    assert words == {f"layer_{one.layer:02}": [one.verdict.encode()] for one in run.finished_info().verdicts}


def test_tracking_changes_neither_the_run_nor_its_folder(tmp_path):
    plain, tracked = train(tmp_path / "plain", TrackingRequest()), train(tmp_path / "tracked", TENSORBOARD)
    assert plain.path.name == tracked.path.name
    for name in RESULTS:
        assert (plain.path / name).read_bytes() == (tracked.path / name).read_bytes()
    files = [sorted(str(path.relative_to(run.path)) for path in run.path.rglob("*")) for run in (plain, tracked)]
    assert files[0] == files[1]
    assert (plain.path / "checksums.json").read_text().count("events") == 0
    assert [*find_runs([tmp_path / "tracked"])] == [tracked.path]
    assert sorted(path.name for path in (tmp_path / "plain").iterdir()) == ["reviews-ut"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_resumed_run_continues_its_curves_without_repeating_a_step(tmp_path, how):
    settings = ("training.epochs=3", "training.checkpoint_every=2", "training.validate_every=2")

    def until(step: int) -> int:
        display = Stopping(step, how)
        return ending(
            in_child(lambda: launch.train(tiny_recipe(*settings), tmp_path, "cpu", None, display, track=TENSORBOARD))
        )

    # A kill at 4 repeats the third update, and one at 6 the fifth.
    for step in (4, 6, 8):
        assert until(step) == (1 if how == signal.SIGINT else -how)
    assert until(-1) == 0
    run = run_for(tiny_recipe(*settings), tmp_path)
    assert_complete(run, folder_of(run))
    assert len([*folder_of(run).glob("events.*")]) == 4


def test_a_kill_between_validation_and_checkpoint_repeats_nothing(tmp_path, monkeypatch):
    from cudt.training.history import History

    append = History.append

    def die_after_validation(history: History, run: Run) -> None:
        if any(row[2] == "validation" for row in history.rows):
            raise OSError("the disk went away")
        append(history, run)

    with monkeypatch.context() as patch:
        patch.setattr(History, "append", die_after_validation)
        with pytest.raises(OSError, match="the disk went away"):
            train(tmp_path, TENSORBOARD)
    assert_complete(run := train(tmp_path, TENSORBOARD), folder_of(run))


@pytest.mark.parametrize("stop_at", [4, None])
def test_a_run_that_was_begun_or_finished_without_a_tracker_is_sent_from_its_history(tmp_path, stop_at):
    if stop_at is None:
        train(tmp_path, TrackingRequest())
    else:
        with pytest.raises(TrainingInterruptedError):
            launch.train(tiny_recipe(), tmp_path, "cpu", None, Stopping(stop_at))
    run = train(tmp_path, TENSORBOARD)
    assert_complete(run, folder_of(run))
    before = {path: path.stat().st_mtime_ns for path in folder_of(run).iterdir()}
    train(tmp_path, TENSORBOARD)
    assert before == {path: path.stat().st_mtime_ns for path in folder_of(run).iterdir()}


def test_a_run_that_begins_anew_has_new_curves(tmp_path):
    from cudt.utils.files import delete

    run = train(tmp_path, TENSORBOARD)
    first = json.loads((folder_of(run) / "sent.json").read_text())["attempt"]
    delete(run.path)
    train(tmp_path, TENSORBOARD)
    assert_complete(run, folder_of(run))
    assert json.loads((folder_of(run) / "sent.json").read_text())["attempt"] != first


def test_what_was_sent_is_sent_again_if_the_note_of_it_is_lost(tmp_path):
    run = train(tmp_path, TENSORBOARD)
    (folder_of(run) / "sent.json").write_text("")
    before = [*folder_of(run).iterdir()]
    train(tmp_path, TrackingRequest())
    assert [*folder_of(run).iterdir()] == before
    train(tmp_path, TENSORBOARD)
    assert_complete(run, folder_of(run))


# ---------------------------------------------------------------- any tracker


def test_a_tracker_gets_the_recipe_once_one_call_an_update_and_the_verdict(fake, tmp_path):
    with pytest.raises(TrainingInterruptedError):
        launch.train(tiny_recipe(), tmp_path, "cpu", None, Stopping(2), track=TrackingRequest(("fake",)))
    run = train(tmp_path, TrackingRequest(("fake",)))
    kinds = [call[0] for call in fake.calls]
    begun = ["new", "start", "settings", "log", "log", "finish", "new", "start"]
    # The rest of the first epoch, its validation, the second epoch, its validation, the verdict.
    assert kinds == [*begun, "log", "log", *["log"] * 3, "log", "log", "finish"]
    assert fake.calls[0] == ("new", "reviews-ut", folder_of(run))
    assert [step for step, _ in fake.logged()] == [1, 2, 3, 3, 4, 5, 6, 6, 6]
    assert fake.logged()[-1][1]["verdict/layer_01"] == run.finished_info().verdicts[0].verdict


def test_a_tracker_that_fails_is_warned_of_once_and_training_goes_on(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(fake, "fails", "log 4")
    both = TrackingRequest(("fake", "tensorboard"))
    with pytest.warns(DataWarning) as seen:
        run = train(tmp_path, both)
    lines = [str(one.message) for one in seen if "tracker" in str(one.message)]
    assert lines == [
        f"{run.path}: tracker fake failed and gets no more values: the network is away; training goes on, and "
        "history.csv has all values"
    ]
    assert [step for step, _ in fake.logged()] == [1, 2, 3, 3]
    # The other one is complete, and the same command sends what is missing.
    assert_complete(run, folder_of(run))
    monkeypatch.setattr(fake, "fails", "")
    train(tmp_path, both)
    assert [step for step, _ in fake.logged()] == [1, 2, 3, 3, 4, 5, 6, 6, 6]
    assert_complete(run, folder_of(run))


def test_a_tracker_that_does_not_start_is_refused_and_in_a_sweep_warned_of(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(fake, "fails", "start")
    problem = "--track fake: the tracker does not start: no key"
    with pytest.raises(UserError) as raised:
        train(tmp_path, TrackingRequest(("fake",)))
    assert str(raised.value) == problem
    with pytest.warns(DataWarning, match=problem):
        run = train(tmp_path, TrackingRequest(("fake", "tensorboard"), "mine-1234"))
    assert_complete(run, folder_of(run, "mine-1234"))


def test_only_the_main_process_sends(fake, tmp_path):
    def calls() -> list[int]:
        train(tmp_path, TrackingRequest(("fake", "tensorboard")))
        return [step for step, _ in Fake.logged()]

    assert together(2, calls) == [[1, 2, 3, 3, 4, 5, 6, 6, 6], []]
    run = run_for(tiny_recipe(), tmp_path)
    assert_complete(run, folder_of(run))


def test_a_refusal_in_the_main_process_ends_all(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(fake, "fails", "start")

    def refused() -> str:
        try:
            train(tmp_path, TrackingRequest(("fake",)))
        except UserError as error:
            return str(error)
        return ""

    assert together(2, refused) == ["--track fake: the tracker does not start: no key"] * 2


def test_the_python_api_takes_names(fake, tmp_path):
    cudt.train(tiny_recipe(), tmp_path, "cpu", quiet=True, track="fake")
    assert len(fake.logged()) == 9


# ---------------------------------------------------------------- names and settings


def test_settings_are_values_that_every_tracker_takes():
    values = hyper_parameters(tiny_recipe("descent.alpha=[0.1, 0.2, 0.3]"))
    assert values["descent.alpha"] == "[0.1, 0.2, 0.3]"
    assert values["descent.beta"] == "null"
    assert (values["training.epochs"], values["objective"]) == (2, "constrained")
    assert {type(value) for value in values.values()} <= {bool, int, float, str}


def test_unknown_and_missing_trackers_are_refused(monkeypatch):
    with pytest.raises(
        UserError, match=r"--track tensorbord: unknown tracker; did you mean 'tensorboard'\? Accelerate"
    ):
        check_trackers(["tensorbord"])
    monkeypatch.setattr(tracker_kinds, "get_available_trackers", list)
    with pytest.raises(UserError, match="--track wandb: not installed; pip install wandb"):
        check_trackers(["wandb"])
    check_trackers([])


RUN = tracker_kinds.TrackedRun("recipe", "erm-12", "sweep-34", "ab" * 16, None, Path("o"), Path("o/recipe/erm-12"))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("wandb", {"name": "erm-12", "group": "sweep-34", "id": "ab" * 16, "resume": "allow", "dir": "o"}),
        ("trackio", {"name": "erm-12", "group": "sweep-34", "resume": "allow"}),
        ("comet_ml", {"experiment_key": "ab" * 16}),
        ("clearml", {"task_name": "erm-12"}),
    ],
)
def test_trackers_are_told_run_group_and_folder(name, given):
    tracker = tracker_kinds.build(name, RUN)
    assert tracker.init_kwargs == given
    assert "recipe" in (getattr(tracker, "run_name", ""), getattr(tracker, "user_provided_run_name", ""))


def test_mlflow_resumes_by_the_name_that_it_chose():
    tracker = tracker_kinds.build("mlflow", replace(RUN, known_as="f00"))
    assert (tracker.experiment_name, tracker.run_name, tracker.run_id) == ("recipe", "erm-12", "f00")
    assert tracker.tags == {"sweep": "sweep-34"}


def test_completion_knows_the_trackers_of_accelerate():
    from cudt.cli.completion import trackers

    assert trackers("") == sorted(accelerate_tracking.LOGGER_TYPE_TO_CLASS)
    assert trackers("wandb,te") == ["wandb,tensorboard"]
