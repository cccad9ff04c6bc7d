"""The table of the benches: rows with a verdict, as CSV and on the terminal."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from benchmarks.speed.bench import Bench, Outcome

_COLUMNS = (
    "bench",
    "what",
    "ours",
    "peer",
    "unit",
    "ratio",
    "lowest",
    "highest",
    "goal",
    "verdict",
    "note",
)


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
    def goal_text(self) -> str:
        return f"{'≥' if self.bench.higher_is_better else '≤'} {self.bench.goal:.4g}"

    @property
    def verdict(self) -> str:
        if self.outcome is None:
            return "failed" if self.failed else "skipped"
        distance = self.outcome.ratio - self.bench.goal
        return (
            "reached"
            if (distance >= 0 if self.bench.higher_is_better else distance <= 0)
            else "missed"
        )

    def cells(self) -> dict[str, str]:
        """Every column as text, with four digits."""
        row = dict.fromkeys(_COLUMNS, "")
        row |= {
            "bench": self.name,
            "what": self.bench.what,
            "goal": self.goal_text,
            "verdict": self.verdict,
        }
        if (one := self.outcome) is None:
            return row | {"note": self.reason}
        lowest, highest = one.range
        numbers = {
            "ours": one.ours,
            "peer": one.peer,
            "ratio": one.ratio,
            "lowest": lowest,
            "highest": highest,
        }
        texts = {name: f"{value:.4g}" for name, value in numbers.items()}
        return row | texts | {"unit": one.unit, "note": one.note}


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write all columns of all rows."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        writer.writerows(row.cells() for row in rows)


def on_terminal(rows: Sequence[Row]) -> Table:
    """The table without its notes."""
    table = Table("bench", "ours", "peer", "unit", "ratio", "range", "goal", "verdict")
    for row in rows:
        cell = row.cells()
        span = f"{cell['lowest']}–{cell['highest']}" if cell["ratio"] else ""
        shown = [cell[name] for name in ("bench", "ours", "peer", "unit", "ratio")]
        style = {"reached": "green", "missed": "yellow", "failed": "red"}.get(row.verdict, "")
        table.add_row(*shown, span, cell["goal"], cell["verdict"], style=style)
    return table
