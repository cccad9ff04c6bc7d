"""What came out, for people: tables (CSV), figures (PNG, PDF) and one page (HTML) from run folders alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from cudt.errors import UserError
from cudt.files import write_text
from cudt.report import figures, page, sweeps, tables
from cudt.report.collect import collect


@dataclass(frozen=True)
class Report:
    """What was written, and what was left out of it."""

    table: pd.DataFrame
    table_path: Path
    page: Path
    warnings: list[str]


def write(folders: Sequence[Path], out: Path) -> Report:
    """Write the report about every finished run below some folders."""
    collected = collect(folders)
    if not collected.runs:
        where = ", ".join(str(folder) for folder in folders)
        more = "".join(f"\n  {warning}" for warning in collected.warnings)
        raise UserError(f"no finished run below {where}; `cudt train` makes one{more}")
    collected.warnings.extend(tables.uneven_grids(collected.runs))
    curves, summary = tables.curves(collected.runs), tables.summary(collected.runs)
    written = {
        "table": summary,
        "curves": curves,
        "layers": tables.layer_losses(collected.runs),
        "ratio_bins": tables.ratio_bins(collected.runs),
    }
    for name, table in written.items():
        write_text(out / f"{name}.csv", table.to_csv(index=False))
    searched, damaged = sweeps.collect(folders)
    collected.warnings.extend(damaged)
    drawn = figures.draw(collected.runs, out / "figures", curves)
    collected.warnings.extend(drawn.notes)
    pictures = [*drawn.figures, *sweeps.draw_all(searched, out / "figures")]
    write_text(out / "index.html", page.render(collected, summary, pictures, searched))
    return Report(summary, out / "table.csv", out / "index.html", collected.warnings)
