"""The report: tables (CSV, Markdown, LaTeX), figures and one page, from run folders.

frames.py     run folders as tidy tables         compare.py   who is compared with whom
paired.py     differences with 95 % intervals    tables.py    table.csv, curves.csv, …
paper.py      the paper's numbers beside ours    text_table.py   Markdown and LaTeX
charts.py     what figures share                 figures.py   the figures
sweeps.py     what sweeps searched               page.py      the page
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from cudt.report import compare, frames, paired, paper, sweeps, tables
from cudt.report.frames import Frames
from cudt.report.paired import Comparison, Differences
from cudt.report.sweeps import Sweep
from cudt.report.text_table import TextTable
from cudt.utils.files import folder_next_to, write_text

#: What a report writes; a later report into the same folder replaces them and leaves other files.
_OWN = (
    "table.csv",
    "curves.csv",
    "layers.csv",
    "ratio_bins.csv",
    "paired.csv",
    "tables",
    "figures",
)


@dataclass(frozen=True)
class Report:
    """What `write` found and wrote."""

    frames: Frames
    compared: pd.DataFrame
    """The runs that take part in comparisons: all but those of ablations."""
    table: pd.DataFrame
    comparisons: list[Comparison]
    tables: list[TextTable]
    sweeps: list[Sweep]
    warnings: list[str]
    page: Path
    verdict: str
    """What the comparisons with ERM say, in a sentence; empty without one."""

    @property
    def table_path(self) -> Path:
        """table.csv."""
        return self.page.with_name("table.csv")


def write(
    folders: Sequence[Path],
    out: Path,
    figures: Sequence[str] = (),
    formats: Sequence[str] = ("png",),
) -> Report:
    """Write the report on every finished run below some folders.

    `figures` are import paths of figures outside cudt; no `formats` draws none, not even on the page.
    """
    # Read before anything is written, so that a report that cannot be made replaces none.
    found = frames.read(folders)
    searched, damaged = sweeps.read(folders)
    compare.assign(found)
    sweeps.mark(found, searched)
    compared = compare.without_ablations(found.runs)
    differences = Differences(found)
    curve = tables.curves(found)
    numbers = {
        "table": tables.summary(found, curve),
        "curves": curve,
        "layers": tables.layer_losses(found),
        "ratio_bins": tables.ratio_bins(found),
        "paired": differences.table(),
    }
    comparisons = _comparisons(compared, differences)
    out.mkdir(parents=True, exist_ok=True)
    with folder_next_to(out / "report") as aside:
        for name, table in numbers.items():
            if len(table):
                write_text(aside / f"{name}.csv", table.to_csv(index=False))
        shown = _write_tables(compared, differences, aside / "tables")
        warnings = [*found.warnings, *differences.damaged, *damaged]
        verdict = paired.verdict(comparisons)
        made = Report(
            *(found, compared, numbers["table"], comparisons, shown, searched, warnings),
            *(out / "index.html", verdict),
        )
        from cudt.report import page

        page.write(made, aside, figures, formats)
        _replace(aside, out)
    return made


def _comparisons(runs: pd.DataFrame, differences: Differences) -> list[Comparison]:
    """Constrained against ERM in every cell, under each kind of noise that constrained runs have."""
    made = []
    for match in compare.matches(runs):
        mine = runs.loc[match]
        own = mine[mine["objective"] == compare.CONSTRAINED]
        kinds = _kinds(own) or _kinds(mine)
        made += [differences.comparison(mine, kind) for kind in kinds]
    return made


def _kinds(runs: pd.DataFrame) -> list[str]:
    return [*dict.fromkeys(kind for noises in runs["noises"] for kind in noises)]


def _write_tables(runs: pd.DataFrame, differences: Differences, out: Path) -> list[TextTable]:
    """Write the tables in the paper's layout that have a run."""
    results = paper.result_tables(runs, differences)
    texts = {f"{table.stem}.csv": table.csv().to_csv(index=False) for table in results}
    if missing := [line for table in results for line in table.missing]:
        texts["missing.txt"] = "".join(f"{line}\n" for line in missing)
    settings, long = paper.hyper_parameters(runs)
    if settings:
        texts["dual.csv"] = long.to_csv(index=False)
    shown = [*(table.text() for table in results), *settings]
    for table in shown:
        texts |= {f"{table.stem}.md": table.markdown(), f"{table.stem}.tex": table.latex()}
    for name, text in texts.items():
        write_text(out / name, text)
    return shown


def _replace(aside: Path, out: Path) -> None:
    """Move a complete report into its folder, in place of the one before; the page comes last."""
    for name in _OWN:
        old = out / name
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink(missing_ok=True)
        if (aside / name).exists():
            (aside / name).replace(old)
    (aside / "index.html").replace(out / "index.html")
