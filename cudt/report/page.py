"""The page: the answer, Figure 1 and one table on the first screen, everything else folded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import pandas as pd
from markupsafe import Markup

from cudt import __version__
from cudt.config import plugins
from cudt.report.compare import failing_layers
from cudt.report.frames import each
from cudt.utils.errors import UserError
from cudt.utils.files import file_name, write_text

if TYPE_CHECKING:
    from cudt.report import Report
    from cudt.report.charts import Figure

#: Columns of table.csv on the page.
_COLUMNS = [
    *("recipe", "label", "gamma_train", "seeds", "feasible", "monotone", "perturbation"),
    *("id_mean", "ood_mean", "grid_mean", "input_mean", "auc", "range"),
]


def write(made: Report, out: Path, extra: Sequence[str], formats: Sequence[str]) -> None:
    """Draw the figures into `out`/figures and write `out`/index.html."""
    shown = [*_figures(made, out / "figures", extra, formats)] if formats else []
    loader = jinja2.PackageLoader("cudt.report", ".")
    page = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    specs = {one["stem"]: one.pop("spec") for one in shown}
    text = page.get_template("page.html").render(
        version=__version__,
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        made=made,
        runs=made.frames.runs,
        table=_html(made.table[_COLUMNS]),
        figures=shown,
        families=[(name, _runs(mine)) for name, mine in made.frames.runs.groupby("family")],
        # "<" would end the script.
        specs=Markup(json.dumps(specs).replace("<", "\\u003c")),
        vega=Markup(_vega() if shown else ""),
    )
    write_text(out / "index.html", text)


def _runs(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Each run with what its layers fail and its verdicts."""
    return [
        {
            "row": row,
            "failing": failing_layers(row.failing),
            "verdicts": _html(pd.DataFrame([one.model_dump() for one in row.verdicts])),
        }
        for row in each(runs)
    ]


def _html(table: pd.DataFrame) -> str:
    """The columns that are not empty, as HTML."""
    shown = table.dropna(axis="columns", how="all")
    return shown.to_html(index=False, border=0, na_rep="", float_format="{:.4g}".format)


def _figures(
    made: Report, out: Path, extra: Sequence[str], formats: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Draw and save every figure that the runs have data for."""
    import vl_convert

    from cudt.report.charts import View

    convert: dict[str, Any] = {
        "png": lambda spec: vl_convert.vegalite_to_png(spec, scale=2),
        "svg": lambda spec: vl_convert.vegalite_to_svg(spec).encode(),
        "pdf": vl_convert.vegalite_to_pdf,
    }
    every = View(made.frames)
    families = every.families()
    of_noise = [View(one.frames, one.name, kind) for one in families for kind in one.kinds]
    views = {"all": [every], "recipe": families, "noise": of_noise}
    out.mkdir(parents=True)
    for figure in _all_figures(extra):
        for view in views[figure.of]:
            kind = view.kind if figure.of == "noise" else ""
            for drawing in figure.draw(view):
                parts = file_name(view.name) if view.name else "", kind, figure.name, drawing.name
                stem, spec = "-".join(filter(None, parts)), drawing.chart.to_dict(validate=False)
                for one in formats:
                    (out / f"{stem}.{one}").write_bytes(convert[one](spec))
                names = {"stem": stem, "name": figure.name, "family": view.name}
                yield {**names, "caption": drawing.caption, "spec": spec}


def _all_figures(extra: Sequence[str]) -> list[Figure]:
    from cudt.report.charts import Figure
    from cudt.report.figures import FIGURES

    found = [*FIGURES]
    for path in dict.fromkeys(extra):
        figure = plugins.implementation("figure", path)
        if not isinstance(figure, Figure) or figure.name in {one.name for one in found}:
            raise UserError(f"figure '{path}': FIGURE must be a Figure with a name of its own")
        found.append(figure)
    return found


def _vega() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script."""
    import vl_convert

    # In a page, "</script" would end the script.
    script: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]
    return script.replace("</script", "<\\/script")
