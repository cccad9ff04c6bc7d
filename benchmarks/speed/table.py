"""The table of the benches: rows with a verdict, as CSV, as Markdown and on the terminal."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from benchmarks.speed.bench import Bench, Outcome

_COLUMNS = ("bench", "what", "ours", "peer", "unit", "ratio", "lowest", "highest", "limit", "goal", "verdict", "note")
#: The width of Markdown lines outside of tables.
_WIDTH = 100


@dataclass(frozen=True)
class Row:
    """An outcome and its verdict, or the reason why there is none."""

    bench: Bench
    outcome: Outcome | None
    reason: str = ""
    failed: bool = False

    @property
    def name(self) -> str:
        return (self.outcome.name if self.outcome else None) or self.bench.name

    @property
    def goal(self) -> float:
        given = self.outcome.goal if self.outcome else None
        return self.bench.goal if given is None else given

    @property
    def goal_text(self) -> str:
        return f"{'≥' if self.bench.higher_is_better else '≤'} {self.goal:.4g}"

    @property
    def verdict(self) -> str:
        if self.outcome is None:
            return "failed" if self.failed else "skipped"
        reached = self.outcome.ratio >= self.goal if self.bench.higher_is_better else self.outcome.ratio <= self.goal
        return "reached" if reached else "missed"

    def cells(self) -> dict[str, str]:
        """Every column as text, with four digits."""
        row = dict.fromkeys(_COLUMNS, "")
        row |= {"bench": self.name, "what": self.bench.what, "goal": self.goal_text, "verdict": self.verdict}
        if (one := self.outcome) is None:
            return row | {"note": self.reason}
        lowest, highest = one.range
        numbers = {"ours": one.ours, "peer": one.peer, "ratio": one.ratio, "lowest": lowest, "highest": highest}
        limit = "" if one.limit is None else f"{one.limit:.4g}"
        texts = {name: f"{value:.4g}" for name, value in numbers.items()}
        return row | texts | {"unit": one.unit, "limit": limit, "note": one.note}


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write all columns of all rows."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        writer.writerows(row.cells() for row in rows)


def on_terminal(rows: Sequence[Row]) -> Table:
    """The table without its notes."""
    table = Table("bench", "ours", "peer", "unit", "ratio", "range", "limit", "goal", "verdict")
    for row in rows:
        cell = row.cells()
        span = f"{cell['lowest']}–{cell['highest']}" if cell["ratio"] else ""
        shown = [cell[name] for name in ("bench", "ours", "peer", "unit", "ratio")]
        style = {"reached": "green", "missed": "yellow", "failed": "red"}.get(row.verdict, "")
        table.add_row(*shown, span, cell["limit"], cell["goal"], cell["verdict"], style=style)
    return table


def markdown(rows: Sequence[Row], measured_on: str) -> str:
    """The table as Markdown, with the notes below it."""
    lines = ["| bench | ours ÷ peer | ratio (range) | limit | goal | verdict |", "|---|---|---|---|---|---|"]
    notes = []
    for row in rows:
        cell = row.cells()
        ratio = f"{cell['ratio']} ({cell['lowest']}–{cell['highest']})" if cell["ratio"] else "–"
        parts = [row.name, cell["what"], ratio, cell["limit"] or "–", cell["goal"], cell["verdict"]]
        lines.append(f"| {' | '.join(parts)} |")
        if cell["note"]:
            notes += textwrap.wrap(f"- {row.name}: {cell['note']}", _WIDTH, subsequent_indent="  ")
    return "\n".join([measured_on, "", *lines, "", *notes]) + "\n"
