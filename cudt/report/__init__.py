"""The report: tables (CSV, Markdown, LaTeX), figures (PNG, PDF) and one HTML page, from run
folders.

collect.py           reads runs                        sweeps.py          reads sweeps, draws what they searched
comparable.py        which runs may be compared        names.py           what variants are called
tables.py            curves, layer losses, summary     groups.py          runs that differ in their seed only
scores.py            scores of single examples         paired.py          differences to ERM with intervals
compare.py           constrained against ERM           headline.py        all comparisons of the page
published.py         the paper's numbers               paper_results.py   our runs in the paper's tables
paper_tables.py      results in the paper's layout     hyper_parameters.py   settings of the best runs
text_table.py        a table as Markdown and LaTeX     terminal.py        the summary in a terminal
page.py, page.html   the page                          exhibits.py        its pictures and completions
interactive.py       its charts                        figures/           one file for each figure
manifest.py          which files a report wrote        material.py        what the page is made of
early_exit.py        accuracy and depth over seeds     editions.py        runs with other test data
sections/            one file for each further section of the page: text and tables
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from cudt.report import (
    editions,
    headline,
    hyper_parameters,
    manifest,
    page,
    paired,
    paper_results,
    paper_tables,
    sections,
    sweeps,
    tables,
)
from cudt.report.collect import Collected, ReadRun, collect
from cudt.report.comparable import without_ablations
from cudt.report.figures import plan
from cudt.report.groups import read_groups
from cudt.report.material import Material
from cudt.report.sweeps import ReadSweep
from cudt.report.text_table import TextTable
from cudt.utils.errors import UserError
from cudt.utils.files import write_text


@dataclass(frozen=True)
class Report:
    """What `write` wrote, and its warnings."""

    table: pd.DataFrame
    table_path: Path
    page: Path
    warnings: list[str]
    verdict: str
    """All comparisons with ERM in a sentence; empty without a comparison."""
    n_sweeps: int


def write(folders: Sequence[Path], out: Path, figures: Sequence[str] = ()) -> Report:
    """Write the report on every finished run below some folders.

    `figures` are import paths of figures outside cudt.
    """
    searched, damaged_sweeps = sweeps.collect(folders)
    collected = _collected(folders, searched)
    runs = collected.runs
    curves = tables.curves(runs)
    compared = without_ablations(runs, sweeps.ablations(searched, runs))
    groups = read_groups(runs, curves)
    same = len(compared) == len(runs)
    jobs = plan(groups if same else read_groups(compared), out / "figures", groups, figures)
    pictures = [draw() for draw in [*jobs, *sweeps.plan(searched, out / "figures")]]
    summary = tables.summary(runs, curves)
    differences, damaged_scores = paired.compare(runs)
    _write_numbers(runs, {"table": summary, "paired": differences, "curves": curves}, out)
    shown, files = _write_tables(compared, out / "tables")
    collected.warnings.extend([*damaged_scores, *damaged_sweeps])
    made = Material(collected, compared, groups, summary, shown, searched)
    parts = sections.build(made)
    files += _write_texts([table for part in parts for table in part.tables], out / "tables")
    write_text(out / "index.html", page.render(made, pictures, parts))
    stale = manifest.replace(
        out, [*files, *(path for picture in pictures for path in (picture.png, picture.pdf))]
    )
    collected.warnings.extend(stale)
    verdict = headline.verdict(made.comparisons)
    return Report(
        summary, out / "table.csv", out / "index.html", collected.warnings, verdict, len(searched)
    )


def _collected(folders: Sequence[Path], searched: Sequence[ReadSweep]) -> Collected:
    collected = collect(folders)
    if not collected.runs:
        where = ", ".join(str(folder) for folder in folders)
        more = "".join(f"\n  {warning}" for warning in collected.warnings)
        raise UserError(f"no finished run below {where}; create one with `cudt train`{more}")
    runs, differing = editions.mark(sweeps.with_measures(collected.runs, searched))
    return Collected(runs, [*collected.warnings, *differing, *tables.uneven_grids(runs)])


def _write_numbers(runs: Sequence[ReadRun], numbers: Mapping[str, pd.DataFrame], out: Path) -> None:
    """Write the CSV files of all runs."""
    losses = {"layers": tables.layer_losses(runs), "ratio_bins": tables.ratio_bins(runs)}
    for name, table in {**numbers, **losses}.items():
        write_text(out / f"{name}.csv", table.to_csv(index=False))


def _write_tables(
    runs: Sequence[ReadRun], out: Path
) -> tuple[list[tuple[TextTable, bool]], list[Path]]:
    """Write every table in the paper's layout; return each with whether it has a number of ours,
    and the files.
    """
    shown = []
    results = paper_results.result_tables(runs)
    missing = [
        f"{table.title}: {cell}\n"
        for table in results
        if table.is_published
        for cell in table.missing
    ]
    texts = {"missing.txt": "".join(missing)}
    for result in results:
        table = paper_tables.of_results(result)
        texts[f"{table.stem}.csv"] = result.long().to_csv(index=False)
        shown.append((table, result.n_filled > 0))
    settings, long = hyper_parameters.hyper_parameters(runs)
    texts["dual.csv"] = long.to_csv(index=False)
    shown += [(table, any(row[-1].text != "0" for row in table.rows)) for table in settings]
    for name, text in texts.items():
        write_text(out / name, text)
    return shown, [
        *(out / name for name in texts),
        *_write_texts([table for table, _ in shown], out),
    ]


def _write_texts(tables: Sequence[TextTable], out: Path) -> list[Path]:
    """Write each table as Markdown and LaTeX; return the files."""
    texts = {f"{table.stem}.md": table.markdown() for table in tables}
    texts |= {f"{table.stem}.tex": table.latex() for table in tables}
    for name, text in texts.items():
        write_text(out / name, text)
    return [out / name for name in texts]
