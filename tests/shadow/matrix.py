"""The matrix: what every model, task and objective does on the pretended accelerator, next to the CPU.

python -m tests.shadow.matrix            # all rows, in Markdown
python -m tests.shadow.matrix dust erm   # rows with these words
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rich.console import Console
from torch.optim.optimizer import register_optimizer_step_post_hook

import cudt
from cudt.data.loading import batches
from cudt.evaluation import generate
from cudt.evaluation.evaluate import evaluate_ood
from cudt.evaluation.generate import Request
from cudt.evaluation.grid import Grid
from cudt.models.layer_losses import measure
from cudt.noise.source import NoiseSource
from cudt.runs.run import Run
from cudt.training import launch, trained
from cudt.training.display import PlainDisplay
from cudt.training.view import TrainingView
from cudt.utils.errors import DataWarning, TrainingInterruptedError
from tests.shadow.cases import CASES, Case, write_data
from tests.shadow.device import DEVICE, Event, Watch, active, watch

#: The update after which training is interrupted: the first of the second epoch.
_INTERRUPTED = 4


@dataclass
class Counted:
    """Waits and blocking copies of one update, of one log and of one measured batch."""

    update: list[Event] = field(default_factory=list)
    log: list[Event] = field(default_factory=list)
    batch: list[Event] = field(default_factory=list)
    copies: list[Event] = field(default_factory=list)
    """Blocking copies of one update."""


@dataclass
class Row:
    """Whether each step gave the CPU's numbers; empty if it does not apply."""

    update: str = ""
    validation: str = ""
    evaluation: str = ""
    resume: str = ""
    export: str = ""
    answers: str = ""
    """`predict` and early exits, or `generate`."""
    counted: Counted = field(default_factory=Counted)

    def steps(self) -> dict[str, str]:
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "counted"}


class _Interrupting(PlainDisplay):
    """Asks the training to stop after an update, as Ctrl-C does."""

    def update(self, view: TrainingView) -> None:
        if view.step == _INTERRUPTED:
            os.kill(os.getpid(), signal.SIGINT)


def _quiet() -> PlainDisplay:
    return PlainDisplay(Console(quiet=True))


@dataclass
class _Side:
    """A case on one device, and what it wrote there."""

    case: Case
    device: str
    root: Path
    out: Path

    def train(self, display: PlainDisplay) -> Run:
        return launch.train(self.case.recipe(self.root), self.out, self.device, self.root, display)

    def evaluate(self, run: Run) -> None:
        classifies = run.finished_info().metric.name == "accuracy"
        pictures = int(bool(run.finished_info().has_pictures))
        evaluate_ood(run, Grid(), self.device, self.root, _plainly, pictures, with_exits=classifies)

    def answer(self, run: Run) -> Any:
        """What the run answers: labels and probabilities, or text; None for video."""
        if run.recipe.settings.model.generates_text:
            request = Request(self.root / "asked.json", gamma=0.5, max_new_tokens=6)
            return generate.generate(run, request, self.device, self.root, _plainly).read_text()
        if run.finished_info().metric.name != "accuracy":
            return None
        texts = (
            [("the plot was good", "the cast was bad"), ("the cast was fine", "bad")]
            if self.case.task == "mnli"
            else ["the plot was good", "the cast was bad"]
        )
        made = cudt.predict(run, texts, {"confidence": 0.6}, device=self.device, data_root=self.root)
        return made.labels, made.probabilities.tolist(), [*made.layers]


def _plainly(batches: Iterable[Any], total: int, what: str) -> Iterable[Any]:
    return batches


def compute(case: Case, root: Path, out: Path) -> Row:
    """Train, interrupt, resume, evaluate, export and ask on both devices; every step must give the same numbers."""
    row = Row()
    cpu, shadow = (_Side(case, device, root, out / device) for device in ("cpu", "shadow"))
    expected = cpu.train(_quiet())
    cpu.evaluate(expected)
    answers = cpu.answer(expected)
    with active():
        with watch() as seen, _marking_updates(seen) as marks:
            try:
                shadow.train(_Interrupting(Console(quiet=True)))
                row.resume = "not interrupted"
            except TrainingInterruptedError:
                pass
        row.counted = _of_updates(seen, marks)
        run = shadow.train(_quiet())
        shadow.evaluate(run)
        row.counted.batch = _of_a_batch(run, root)
        answered = shadow.answer(run)
    _compare(row, expected, run)
    row.answers = "" if answers is None else "same" if answers == answered else "differ"
    return row


@contextmanager
def _marking_updates(seen: Watch) -> Iterator[list[tuple[int, int]]]:
    """How many waits and blocking copies there were at the end of each primal step; complete when the block ends."""
    marks: list[tuple[int, int]] = []
    steps: list[tuple[torch.optim.Optimizer, tuple[int, int]]] = []
    handle = register_optimizer_step_post_hook(
        lambda optimizer, *unused: steps.append((optimizer, (len(seen.waits), len(seen.copies))))
    )
    try:
        yield marks
    finally:
        handle.remove()
        # Others step, too: that of the multipliers, and those that only try whether an optimiser can be fused.
        primal = next(one for one, _ in reversed(steps) if one.param_groups[0]["params"][0].device.type == "shadow")
        marks += [mark for one, mark in steps if one is primal]


def _of_updates(seen: Watch, marks: list[tuple[int, int]]) -> Counted:
    """From the end of one step to the end of the next is one update; the second update is logged."""
    (first, copied), (second, copied_next), (third, _) = marks[:3]
    update = seen.waits[first:second]
    logged = seen.waits[second:third]
    for event in update:
        if event in logged:
            logged.remove(event)
    return Counted(update, logged, copies=seen.copies[copied:copied_next])


def _of_a_batch(run: Run, root: Path) -> list[Event]:
    """The waits of a measurement of two batches that those of one batch do not have."""
    layerwise = trained.load(run, "shadow", root)
    noise = NoiseSource("gaussian", run.finished_info().sigma_x.evaluation, 0)
    waits = []
    for n_batches in (1, 2):
        examples = layerwise.task.examples("test")[: 2 * n_batches]
        with watch() as seen:
            measure(layerwise, batches(layerwise.task, examples, 2, DEVICE), noise, [0.0, 0.5])
        waits.append(seen.waits)
    one, two = waits
    for event in one:
        two.remove(event)
    return two


def _compare(row: Row, expected: Run, run: Run) -> None:
    histories = [one.read_table("history").set_index("split") for one in (expected, run)]
    for step, split in (("update", "train"), ("validation", "validation")):
        one, other = (history.loc[split].reset_index(drop=True) for history in histories)
        setattr(row, step, _same(one, other))
    row.evaluation = _same_files(expected.path, run.path, "*.csv", "results/**/*", but="history.csv")
    row.resume = row.resume or _same_files(expected.path, run.path, "checkpoints/*.safetensors")
    row.export = _same_files(expected.path, run.path, "model/**/*")


def _same(one: pd.DataFrame, other: pd.DataFrame) -> str:
    return "same" if one.equals(other) else "differ"


def _same_files(one: Path, other: Path, *patterns: str, but: str = "") -> str:
    """`same`, or the first file that differs; empty if there is none to compare."""
    found = sorted({path for pattern in patterns for path in one.glob(pattern) if path.is_file() and path.name != but})
    for path in found:
        twin = other / path.relative_to(one)
        if not twin.is_file() or path.read_bytes() != twin.read_bytes():
            return f"{path.relative_to(one)} differs"
    return "same" if found else ""


def header() -> str:
    """The first two lines of the table, in Markdown."""
    titles = ["model", "task", "objective", *Row().steps()]
    titles += ["waits/update", "waits/log", "waits/batch", "blocking copies/update"]
    return f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}"


def line(case: Case, row: Row) -> str:
    """A row of the table."""
    counted = (row.counted.update, row.counted.log, row.counted.batch, row.counted.copies)
    cells = [case.model, case.task, case.objective, *row.steps().values(), *(str(len(events)) for events in counted)]
    return f"| {' | '.join(cells)} |"


def main(words: list[str]) -> None:
    """Print the rows whose names have all of the words."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DataWarning)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CUDT_CACHE"] = f"{folder}/cache"
        root = Path(folder, "data")
        root.mkdir()
        write_data(root)
        print(header())
        for number, case in enumerate(case for case in CASES if all(word in str(case) for word in words)):
            print(line(case, compute(case, root, Path(folder, str(number)))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
