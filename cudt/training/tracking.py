"""Trackers (TensorBoard, Weights & Biases, MLflow …): they get every row of history.csv as it is recorded.

    outputs/trackers/<recipe>/<objective>-<identity>/        for the runs of a sweep, <recipe>/<sweep>/…
        events.out.tfevents.…    TensorBoard
        sent.json                how many rows each tracker has, so that a resume neither repeats nor skips one

A resume begins at the last checkpoint and records again what came after it. Training is deterministic, so these are
rows that a tracker has already, and they are left out by their number. What a tracker lacks, because it was not asked
for before or could not be reached, comes from history.csv.
"""

from __future__ import annotations

import itertools
import json
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from accelerate.tracking import GeneralTracker

from cudt.config.differences import flat_settings
from cudt.config.recipe import NamedRecipe
from cudt.method.feasibility import FAILING
from cudt.runs.info import FinishedInfo
from cudt.runs.run import Run
from cudt.training.history import History, Row
from cudt.training.tracker_kinds import TrackedRun, build, chosen_name, takes_text
from cudt.utils.errors import DataWarning, UserError
from cudt.utils.files import delete, file_name

#: The folder of the trackers' files, next to the folders of the recipes.
FOLDER = "trackers"
_SENT = "sent.json"


@dataclass(frozen=True)
class TrackingRequest:
    """What is asked for: the names of the trackers, and the sweep that groups its runs."""

    names: tuple[str, ...] = ()
    group: str | None = None


@dataclass
class _Sent:
    """The content of sent.json."""

    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Names a training from its beginning to its end, for trackers that resume by a name."""
    rows: dict[str, int] = field(default_factory=dict)
    """By tracker, the rows of history.csv that it has."""
    concluded: list[str] = field(default_factory=list)
    """The trackers that have the verdict."""
    known_as: dict[str, str | None] = field(default_factory=dict)
    """By tracker, the name of the run if the tracker chose it."""


class Tracking:
    """The trackers of one run, in its main process; without names, it does nothing.

    A tracker that fails gets no more values: training goes on without it, after a warning.
    """

    def __init__(self, run: Run, out: Path, track: TrackingRequest) -> None:
        self._run, self._track = run, track
        self._root = out / FOLDER
        self._folder = self._root / run.recipe.name / (track.group or "") / run.path.name
        self._trackers: dict[str, GeneralTracker] = {}
        self._sent = _Sent()
        self._n_rows, self._step, self._width = 0, 0, 2
        self._waiting: list[Row] = []

    @property
    def is_complete(self) -> bool:
        """Whether every tracker has the verdict, and so all rows before it."""
        return not self._track.names or {*self._track.names} <= {*self._read().concluded}

    def start(self, history: History) -> None:
        """Start the trackers, and send them what they lack of the history so far."""
        if not self._track.names:
            return
        self._sent = self._read()
        if history.size == 0 or not self._sent.rows:
            # The run begins anew, or nobody knows what was sent.
            delete(self._folder)
            self._sent = _Sent()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._width = max(2, len(str(self._run.info().layers or 0)))
        for name in self._track.names:
            self._begin(name)
        # As while training: one call for each update and split.
        for _, rows in itertools.groupby(history.recorded(self._run), key=lambda row: row[:3]):
            self.add([*rows])
            self.send()

    def _begin(self, name: str) -> None:
        run, sent = self._run, self._sent
        names = (run.recipe.name, run.path.name, self._track.group, sent.attempt, sent.known_as.get(name))
        try:
            tracker = self._trackers[name] = build(name, TrackedRun(*names, self._root, self._folder))
            tracker.start()
            if name not in sent.rows:
                self._describe(name, tracker)
            sent.known_as[name] = chosen_name(name, tracker)
            sent.rows.setdefault(name, 0)
        except Exception as error:  # each tracker raises errors of its own
            self._trackers.pop(name, None)
            problem = f"--track {name}: the tracker does not start: {_first_line(error)}"
            if self._track.group is None:
                raise UserError(problem) from None
            # A sweep trains its runs all the same, perhaps without anybody watching.
            warnings.warn(problem, DataWarning, stacklevel=2)

    def _describe(self, name: str, tracker: GeneralTracker) -> None:
        """Send the recipe as hyper-parameters."""
        values = hyper_parameters(self._run.recipe)
        if name != "tensorboard":
            tracker.store_init_configuration(values)
            return
        # Accelerate would write them into a run of their own, without the results to compare them by.
        from torch.utils.tensorboard.summary import hparams

        info = self._run.info()
        measured = ["loss"] if info.metric is None else ["loss", info.metric.name]
        results = ["feasible", "monotone", *(self._name("validation", info.layers or 0, one) for one in measured)]
        for summary in hparams(values, dict.fromkeys(results, 0.0)):
            tracker.tracker.file_writer.add_summary(summary)

    def add(self, rows: Sequence[Row]) -> None:
        """Take rows of the history, which `send` sends together."""
        self._waiting += rows

    def send(self) -> None:
        """Send the rows since the last call, all of one update."""
        rows, self._waiting, before = self._waiting, [], self._n_rows
        self._n_rows += len(rows)
        self._step = rows[-1][0] if rows else self._step
        for name, tracker in [*self._trackers.items()]:
            values = self._values(rows[max(0, self._sent.rows[name] - before) :])
            if values:
                with self._surviving(name):
                    tracker.log(values, step=self._step)
                    self._sent.rows[name] = self._n_rows
                    self._write()

    def _values(self, rows: Sequence[Row]) -> dict[str, float]:
        has_slack = self._run.recipe.settings.descent.resilience == "slack"
        kept = (row for row in rows if has_slack or row[4] != "slack")
        return {self._name(split, layer, name): value for _, _, split, layer, name, value in kept}

    def _name(self, split: str, layer: int, name: str) -> str:
        """`loss/layer_03`, `loss_validation/layer_03`, `gradient_norm`: trackers group by what is before the slash."""
        group = file_name(name if split == "train" else f"{name}_{split}")
        return f"{group}/layer_{layer:0{self._width}}" if layer else group

    def conclude(self, info: FinishedInfo) -> None:
        """Send the verdict of a finished run."""
        numbers = {"feasible": float(info.feasible), "monotone": float(info.monotone)}
        words = {}
        for one in info.verdicts:
            numbers[self._name("train", one.layer, "constraint_holds")] = float(one.verdict not in FAILING)
            words[self._name("train", one.layer, "verdict")] = one.verdict
        for name, tracker in [*self._trackers.items()]:
            if name not in self._sent.concluded:
                with self._surviving(name):
                    tracker.log({**numbers, **words} if takes_text(name) else numbers, step=self._step)
                    self._sent.concluded.append(name)
                    self._write()

    def finish(self) -> None:
        """Let the trackers write what they hold, and close them."""
        for name, tracker in [*self._trackers.items()]:
            with self._surviving(name):
                tracker.finish()
        self._trackers.clear()

    @contextmanager
    def _surviving(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a tracker raises, such as a lost network, must not end the training
            del self._trackers[name]
            message = (
                f"{self._run.path}: tracker {name} failed and gets no more values: {_first_line(error)}; training goes "
                "on, and history.csv has all values"
            )
            warnings.warn(message, DataWarning, stacklevel=2)

    def _read(self) -> _Sent:
        try:
            return _Sent(**json.loads((self._folder / _SENT).read_text()))
        except (OSError, ValueError, TypeError):
            # Never written, or lost in a power failure: the trackers get everything, as a new run.
            return _Sent()

    def _write(self) -> None:
        """Replace sent.json. It is not synced to the disk, which takes longer than many updates."""
        temporary = self._folder / f".{_SENT}"
        temporary.write_text(json.dumps(asdict(self._sent)))
        temporary.replace(self._folder / _SENT)


def hyper_parameters(recipe: NamedRecipe) -> dict[str, bool | int | float | str]:
    """Every setting that shapes training, by dotted key; lists and null as JSON, which all trackers take."""
    values = {"objective": recipe.settings.objective, "seed": recipe.settings.seed, **flat_settings(recipe)}
    plain = bool | int | float | str
    return {key: value if isinstance(value, plain) else json.dumps(value) for key, value in values.items()}


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
