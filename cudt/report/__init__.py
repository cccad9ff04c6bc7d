"""The report: tables (CSV, Markdown, LaTeX), figures and one page, from run folders.

frames.py     run folders as tidy tables         compare.py   who is compared with whom
paired.py     differences with 95 % intervals    tables.py    table.csv, curves.csv, …
paper.py      the paper's numbers beside ours    page.py      the page
charts.py     what figures share                 figures.py   the figures
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from cudt.report import compare, frames, paired, paper, tables
from cudt.report.frames import Frames
from cudt.report.paired import Comparison, Differences
from cudt.report.tables import TextTable
from cudt.utils.files import folder_next_to, write_text

#: What a report writes; a later report into the same folder replaces them and leaves other files.
_OWN = (
    *("table.csv", "curves.csv", "layers.csv", "ratio_bins.csv", "paired.csv"),
    *("tables", "figures", "index.html"),
)


@dataclass(frozen=True)
class Report:
    """What `write` found and wrote."""

    frames: Frames
    table: pd.DataFrame
    tables: list[TextTable]
    page: Path
    verdict: str
    """What the comparisons with ERM say, in a sentence; empty without one."""


def write(
    folders: Sequence[Path],
    out: Path,
    figures: Sequence[str] = (),
    formats: Sequence[str] = ("png",),
) -> Report:
    """Write the report on every finished run below some folders.

    `figures` are import paths of figures outside cudt; no `formats` draws none, not even on the page.
    """
    from cudt.report import page

    # Read before anything is written, so that a report that cannot be made replaces none.
    found = frames.read(folders)
    compare.assign(found)
    differences = Differences(found)
    curve = tables.curves(found)
    numbers = {
        "table": tables.summary(found, curve),
        "curves": curve,
        "layers": tables.layer_losses(found),
        "ratio_bins": tables.ratio_bins(found),
        "paired": differences.table(),
    }
    comparisons = _comparisons(differences)
    shown, long = paper.tables(differences)
    if comparisons:
        shown.insert(0, tables.comparison_table(found.runs, comparisons))
    verdict = paired.verdict(comparisons)
    made = Report(found, numbers["table"], shown, out / "index.html", verdict)
    files = {f"{name}.csv": table for name, table in numbers.items() if len(table)}
    files |= {f"tables/{name}.csv": table for name, table in long.items()}
    out.mkdir(parents=True, exist_ok=True)
    with folder_next_to(out / "report") as aside:
        for path, table in files.items():
            write_text(aside / path, table.to_csv(index=False))
        for text in shown:
            write_text(aside / "tables" / f"{text.stem}.md", text.markdown())
            write_text(aside / "tables" / f"{text.stem}.tex", text.latex())
        page.write(made, aside, figures, formats)
        for name in _OWN:  # The page comes last.
            old = out / name
            shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
            if (aside / name).exists():
                (aside / name).replace(old)
    return made


def _comparisons(differences: Differences) -> list[Comparison]:
    """Constrained against ERM in every cell, under each kind of noise that its runs have."""
    runs = differences.frames.runs
    return [
        differences.comparison(match, kind)
        for _, cell in compare.without_ablations(runs).groupby("cell")
        for match in compare.matches(cell)
        for kind in runs.loc[match, "noises"].explode().dropna().unique()
    ]
