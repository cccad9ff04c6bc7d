"""Where workers take their trials from, and how a trial of a sweep is run."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cudt.config.recipe import NamedRecipe
from cudt.runs.run import run_for
from cudt.sweep.definition import setting_name
from cudt.sweep.lease import Lease
from cudt.sweep.messages import CellJob, CellProgress, CellResult
from cudt.sweep.pruning import Referee
from cudt.sweep.queue import Trial, TrialQueue
from cudt.sweep.study import ArmStudy
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    from cudt.runs.run import Run
    from cudt.utils.device import DeviceName

#: Takes the progress of a running cell.
Report = Callable[[CellProgress], None]


@dataclass(frozen=True)
class RunOptions:
    """Where runs are written and how they are computed; none of it changes a result."""

    out: Path
    """The folder of the run folders."""
    device: DeviceName = "auto"
    data_root: Path | None = None
    workers: int = 1
    """Runs that are trained or evaluated at the same time, each in its own process."""
    retry_failed: bool = False


class Source(Protocol):
    """Trials, and how to run one of them. A worker takes trials from any number of sources:

    class Squares:
        def __init__(self, storage):
            self.queue = Numbers(storage, "squares")  # a TrialQueue, which lists the cells

        def run(self, trial, report, lease):
            return CellResult(trial.parameters["x"] ** 2, {"run": "", "updates": 0})

        def facts(self, trial):
            return {}

    worker.work(lambda: [Squares(storage)])
    """

    @property
    def queue(self) -> TrialQueue: ...

    def run(self, trial: Trial, report: Report, lease: Lease) -> CellResult:
        """Run a trial to its end; what it raises decides how the trial ends (worker.py)."""
        ...

    def facts(self, trial: Trial) -> dict[str, Any]:
        """What the tables say about a trial that failed or was pruned, besides the reason and what
        it cost.
        """
        ...


@dataclass(frozen=True)
class ArmSource:
    """The cells of an arm in a setting: training runs."""

    queue: ArmStudy
    out: Path
    device: DeviceName
    data_root: Path | None
    cell_function: str
    trackers: tuple[str, ...] = ()

    def run(self, trial: Trial, report: Report, lease: Lease) -> CellResult:
        sweep, measure = self.queue.sweep, self.queue.sweep.search.score.measure
        recipe = self._recipe(trial)
        pruner = sweep.arm(self.queue.arm).pruner
        referee = None if pruner is None else Referee(self.queue, trial, pruner, measure)
        own = (self.trackers, sweep.folder(self.out).name)
        job = CellJob(
            recipe.text(),
            self.out,
            self.device,
            self.data_root,
            measure,
            sweep.gammas,
            referee,
            *own,
        )
        # Imported for the first trial, because it imports torch.
        function = pkgutil.resolve_name(self.cell_function)
        lease.take_run(run_for(recipe, self.out), self.out)
        result: CellResult = function(job, report)
        return CellResult(result.score, {**result.facts, "run": _relative(run_for(recipe, Path()))})

    def facts(self, trial: Trial) -> dict[str, Any]:
        try:
            recipe = self._recipe(trial)
        except UserError:
            return {}
        return {
            "run": _relative(run_for(recipe, Path())),
            "updates": updates_of(run_for(recipe, self.out)),
        }

    def _recipe(self, trial: Trial) -> NamedRecipe:
        return self.queue.sweep.recipe(self.queue.setting, self.queue.arm, trial.parameters)


def in_turn(sources: Sequence[ArmSource]) -> Iterator[ArmSource]:
    """Setting by setting, in each the arm first that has begun the fewest trials: a stopped sweep
    has spent equally.
    """
    for setting in dict.fromkeys(setting_name(source.queue.setting) for source in sources):
        arms = [source for source in sources if setting_name(source.queue.setting) == setting]
        yield from sorted(arms, key=lambda source: source.queue.n_begun)


def updates_of(run: Run) -> int | None:
    """The number of updates so far; None if it is unknown because nothing was logged or the run is
    damaged.
    """
    try:
        history = run.read_table("history")
    except (UserError, ValueError, OSError):
        return None
    return None if history.empty else int(history["step"].max())


def _relative(run: Run) -> str:
    return run.path.as_posix()
