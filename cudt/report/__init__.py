"""What came out, for people: tables (CSV, Markdown, LaTeX), figures (PNG, PDF) and one page (HTML), from run folders.

collect.py, sweeps.py      reading runs and sweeps; drawing sweeps
tables.py, paired.py       the numbers: curves, summaries, differences to ERM with intervals
compare.py                 constrained against unconstrained, fairly: which runs stand for each side
groups.py                  runs that differ in their seed alone, with their rows of every table
paper.py, layouts.py       our runs in the paper's tables, its numbers beside ours
layout.py                  a table as Markdown and as LaTeX
figures/                   every figure of the paper
page.py, interactive.py, exhibits.py   the page, its charts, and what is looked at rather than counted
terminal.py                the same in short on a terminal
manifest.py                which files a report wrote
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from cudt.report import figures, layouts, manifest, page, paired, paper, sweeps, tables
from cudt.report.collect import Collected, ReadRun, collect
from cudt.report.groups import read_groups
from cudt.report.layout import Layout
from cudt.report.page import Material
from cudt.utils.errors import UserError
from cudt.utils.files import write_text


@dataclass(frozen=True)
class Report:
    """What was written, and what was left out of it."""

    table: pd.DataFrame
    table_path: Path
    page: Path
    warnings: list[str]
    verdict: str
    """All comparisons with ERM in a sentence; empty where there is none."""
    n_sweeps: int


def write(folders: Sequence[Path], out: Path) -> Report:
    """Write the report about every finished run below some folders."""
    collected = _collected(folders)
    runs = collected.runs
    curves = tables.curves(runs)
    summary = tables.summary(runs, curves)
    differences, damaged_scores = paired.compare(runs)
    searched, damaged_sweeps = sweeps.collect(folders)
    written = {
        "table": summary,
        "paired": differences,
        "curves": curves,
        "layers": tables.layer_losses(runs),
        "ratio_bins": tables.ratio_bins(runs),
    }
    for name, table in written.items():
        write_text(out / f"{name}.csv", table.to_csv(index=False))
    compared = _without_ablations(runs, sweeps.of_one_objective(searched))
    shown, files = _write_layouts(compared, out / "tables")
    drawn = figures.draw(runs, out / "figures", curves)
    collected.warnings.extend([*damaged_scores, *damaged_sweeps, *drawn.notes])
    pictures = [*drawn.figures, *sweeps.draw_all(searched, out / "figures")]
    made = Material(collected, compared, read_groups(runs, curves), summary, shown, pictures, searched)
    write_text(out / "index.html", page.render(made))
    manifest.replace(out, [*files, *(path for picture in pictures for path in (picture.png, picture.pdf))])
    return Report(
        summary,
        out / "table.csv",
        out / "index.html",
        collected.warnings,
        page.verdict(made.comparisons),
        len(searched),
    )


def _collected(folders: Sequence[Path]) -> Collected:
    collected = collect(folders)
    if not collected.runs:
        where = ", ".join(str(folder) for folder in folders)
        more = "".join(f"\n  {warning}" for warning in collected.warnings)
        raise UserError(f"no finished run below {where}; `cudt train` makes one{more}")
    collected.warnings.extend(tables.uneven_grids(collected.runs))
    return collected


def _without_ablations(runs: Sequence[ReadRun], ablated: set[str]) -> list[ReadRun]:
    """Runs of an ablation would join the search that stands in the same place; where nothing else does, they stay."""
    searched = {_place(run) for run in runs if run.name not in ablated}
    return [run for run in runs if run.name not in ablated or _place(run) not in searched]


def _place(run: ReadRun) -> tuple[object, ...]:
    return (run.recipe, run.objective, run.info.layers, run.info.gamma_train)


def _write_layouts(runs: Sequence[ReadRun], out: Path) -> tuple[list[tuple[Layout, bool]], list[Path]]:
    """Every table in the paper's layout, with whether anything of ours stands in it; and the files, three formats."""
    shown = []
    results = paper.result_tables(runs)
    empty = [f"{table.title}: {cell}\n" for table in results if table.is_published for cell in table.missing]
    texts = {"missing.txt": "".join(empty)}
    for table in results:
        layout = layouts.of_results(table)
        texts[f"{layout.stem}.csv"] = table.long().to_csv(index=False)
        shown.append((layout, table.n_filled > 0))
    settings, long = layouts.hyper_parameters(runs)
    texts["dual.csv"] = long.to_csv(index=False)
    shown += [(layout, any(row[-1].text != "0" for row in layout.rows)) for layout in settings]
    for layout, _ in shown:
        texts[f"{layout.stem}.md"], texts[f"{layout.stem}.tex"] = layout.markdown(), layout.latex()
    for name, text in texts.items():
        write_text(out / name, text)
    return shown, [out / name for name in texts]
