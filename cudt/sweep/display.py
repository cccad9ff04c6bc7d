"""Show a sweep while it runs: a live view on a terminal, one line per finished cell elsewhere; and
its results.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cudt.sweep.messages import CellProgress
from cudt.sweep.queue import Key, TrialQueue
from cudt.sweep.results import Results
from cudt.sweep.study import ArmStudy
from cudt.utils.text import duration

#: The most runs that the suggested next command lists.
_MAX_SUGGESTED = 4


@dataclass(frozen=True)
class Cell:
    """A cell as it is shown."""

    key: tuple[str, Key] = field(compare=True)
    name: str = field(compare=False)
    host: str = field(default="", compare=False)
    """Where it runs, if not on this machine."""


class SweepDisplay:
    """One line per ended cell; on a terminal, the running cells below."""

    def __init__(self, console: Console) -> None:
        self._console = console
        is_live = console.is_terminal and not console.is_dumb_terminal
        self._live = (
            Live(console=console, refresh_per_second=4, transient=True, auto_refresh=True)
            if is_live
            else None
        )
        self._running: dict[Cell, CellProgress | None] = {}
        self._warned: set[str] = set()
        self._is_stopping = False
        self._total = self._done = self._done_before = 0
        self._began = time.monotonic()

    def __enter__(self) -> SweepDisplay:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def begin(self, queues: Sequence[TrialQueue], n_done: int) -> None:
        """Count the cells, of which `n_done` have ended."""
        self._done = self._done_before = n_done
        # By the same reading. Some cells, such as evaluations, are expected before they are listed.
        self._total = n_done + sum(queue.n_left for queue in queues)
        if self._done:
            self._line(f"resuming: {self._done} of {self._total} trials are done")
        for search in [queue.sweep.search for queue in queues if isinstance(queue, ArmStudy)]:
            if 0 < len(search.pruning_arms) < len(search.arms):
                only = " and ".join(search.pruning_arms)
                self.warn(
                    f"only {only} prunes: budgets count runs, so compare the arms by the updates "
                    "that they spent"
                )

    def running(self, cell: Cell, progress: CellProgress | None) -> None:
        """Show a cell among the running ones; `progress` is None until its training has begun."""
        self._running[cell] = progress
        self._draw()

    def ended(self, cell: Cell) -> None:
        """Remove a cell from the running ones; `finished`, `failed`, `pruned`, `died` or
        `interrupted` follows.
        """
        self._running.pop(cell, None)

    def finished(self, cell: Cell, outcome: str) -> None:
        self._end_line(cell, outcome)

    def failed(self, cell: Cell, reason: str) -> None:
        self._end_line(cell, f"failed: {reason}", "red")

    def pruned(self, cell: Cell, reason: str) -> None:
        self._end_line(cell, reason)

    def died(self, cell: Cell, how: str) -> None:
        self._line(
            f"{cell.name}: the worker process ended {how}; another worker resumes it", "yellow"
        )

    def interrupted(self, cell: Cell) -> None:
        self._line(f"{cell.name}: interrupted, can be resumed")

    def stopping(self, n_workers: int) -> None:
        """Shown once; a second signal kills the sweep."""
        if not self._is_stopping:
            self._is_stopping = True
            self._line(
                f"stopping: waiting for {n_workers} worker{'s' if n_workers != 1 else ''} to save"
            )

    def warn(self, text: str) -> None:
        """Show a warning about the data, once: all cells use the same data."""
        if text not in self._warned:
            self._warned.add(text)
            self._line(f"warning: {text}", "yellow")

    def _end_line(self, cell: Cell, result: str, style: str = "") -> None:
        self._done += 1
        width = len(str(self._total))
        where = f"  (on {cell.host})" if cell.host else ""
        self._line(f"{self._done:>{width}}/{self._total}  {cell.name}  {result}{where}", style)

    def _line(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, soft_wrap=True, highlight=False)
        self._draw()

    def _draw(self) -> None:
        if self._live is not None:
            self._live.update(self._picture())

    def _picture(self) -> Group:
        heading = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=max(1, self._total), completed=self._done, width=32)
        heading.add_row(f"{self._done} of {self._total} trials", bar, self._time_left())
        rows = Table.grid(padding=(0, 2))
        for cell, now in self._running.items():
            loss = f"loss {now.loss:.4g}" if now is not None and now.loss is not None else ""
            step = f"{now.unit} {now.step}/{now.steps}" if now is not None else "starting"
            rows.add_row(Text(cell.name, overflow="ellipsis", no_wrap=True), step, loss, cell.host)
        return Group(heading, rows)

    def _time_left(self) -> str:
        done = self._done - self._done_before
        if not done:
            return ""
        seconds = (time.monotonic() - self._began) / done * (self._total - self._done)
        return f"about {duration(seconds)} left"


def best_table(made: Results) -> Table:
    """The best score of each arm, and what the arm spent."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    has_settings = bool(made.sweep.search.settings)
    names = ("setting", "arm") if has_settings else ("arm",)
    counts = {"runs": "runs", "failed": "failed", "pruned": "pruned", "spent_updates": "updates"}
    shown = {name: heading for name, heading in counts.items() if name in made.best}
    for name in (*names, "score", "feasible", *shown.values(), "time"):
        table.add_column(
            name,
            justify="left" if name in names else "right",
            no_wrap=name != "setting",
            overflow="fold",
        )
    for row in made.best.to_dict("records"):
        setting = {key: row[key] for key in made.sweep.search.settings}
        found = (
            (f"{row['score']:.5g}", "yes" if row["feasible"] else "no") if row["runs"] else ("", "")
        )
        table.add_row(
            *([made.sweep.spelled(setting)] if has_settings else []),
            row["arm"],
            *found,
            *(str(row[name]) for name in shown),
            duration(row["spent_seconds"]),
        )
    return table


def ending(made: Results, out: Path) -> str:
    """The best runs, where the tables are, and the next command."""
    lines = []
    best = made.best[made.best["runs"] > 0]
    for row in best.to_dict("records"):
        setting = {key: row[key] for key in made.sweep.search.settings}
        searched = {key: row[key] for key in made.arm_keys(row["arm"])}
        is_here = (out / row["run"]).is_dir()
        where = (
            ""
            if is_here
            else " (on another machine, or deleted; `cudt train` with the recipe in best/ trains it)"
        )
        lines.append(
            f"best of {made.sweep.describe(setting, row['arm'], searched)}  "
            f"{out / row['run']}{where}"
        )
    if (why := made.sweep.search.unequal_budgets) is not None:
        lines.append(f"the arms have different budgets: {why}")
    if made.n_pruned:
        spent = made.best.groupby("arm", sort=False)["spent_updates"].sum()
        updates = ", ".join(f"{arm} {int(count):,}" for arm, count in spent.items())
        lines.append(
            f"{made.n_pruned} runs were ended early (pruned), after fewer updates: the arms "
            f"spent {updates}"
        )
    if made.left:
        lines.append(f"{made.left} trials are left; run the same command to resume")
    if made.n_failed:
        lines.append(
            f"{made.n_failed} failed: see the reasons in trials_wide.csv, retry them with "
            "--retry-failed"
        )
    lines.append(
        f"chosen on validation data; all {made.n_finished} finished runs: "
        f"{made.folder / 'trials_wide.csv'}"
    )
    here = [str(out / run) for run in best["run"] if (out / run).is_dir()]
    if 0 < len(here) <= _MAX_SUGGESTED:
        lines.append("next: " + shlex.join(["cudt", "eval-ood", *here]))
    return "\n".join(lines)
