"""The page: the answer, Figure 1 and one table on the first screen, everything else folded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import pandas as pd
from markupsafe import Markup

from cudt import __version__
from cudt.config import plugins
from cudt.report.compare import failing_layers
from cudt.report.frames import each
from cudt.runs.run import RunFolder
from cudt.utils.errors import UserError
from cudt.utils.files import cache_folder, file_name, write_text

if TYPE_CHECKING:
    from cudt.report import Report
    from cudt.report.charts import Figure

#: Column of table.csv, heading on the page.
_COLUMNS = {
    **{"label": "objective", "gamma_train": "γ_train", "seeds": "seeds", "feasible": "feasible"},
    **{"monotone": "monotone", "perturbation": "noise", "id_mean": "ID", "ood_mean": "OOD"},
    **{"grid_mean": "mean", "input_mean": "noisy input", "auc": "AUC", "range": "over"},
}
#: Columns of a sweep's best.csv on the page.
_OF_SWEEP = ["setting", "arm", "score", "feasible", "runs", "spent_updates", "spent_seconds"]


def write(made: Report, out: Path, extra: Sequence[str], formats: Sequence[str]) -> None:
    """Draw the figures into `out`/figures and write `out`/index.html."""
    shown = [*_figures(made, out / "figures", extra, formats)] if formats else []
    loader = jinja2.PackageLoader("cudt.report", ".")
    page = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    # Figure 1 comes first, once for each recipe and kind of noise.
    places: dict[str, list[int]] = {}
    for number, one in enumerate(shown):
        place = "first" if one["name"] == "descent-and-robustness" else one["family"]
        places.setdefault(place, []).append(number)
    frames = made.frames
    text = page.get_template("page.html").render(
        version=__version__,
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        verdict=made.verdict,
        tables=made.tables,
        figures=shown,
        places=places,
        families=[(name, *_family(made, mine)) for name, mine in frames.runs.groupby("family")],
        sweeps=[(one, _html(one.best, [*_OF_SWEEP, *one.info["keys"]])) for one in frames.sweeps],
        warnings=made.warnings,
        n_runs=len(frames.runs),
        # "<" would end the script.
        specs=Markup(json.dumps([one["spec"] for one in shown]).replace("<", "\\u003c")),
        vega=Markup(_vega() if shown else ""),
    )
    write_text(out / "index.html", text)


def _family(made: Report, runs: pd.DataFrame) -> tuple[str, list[dict[str, Any]]]:
    """The rows of table.csv of a family, and each of its runs."""
    keys = made.table[["recipe", "objective", "variant"]].apply(tuple, axis=1)
    rows = made.table[keys.isin(runs["group"])].rename(columns=_COLUMNS)
    shown = [
        {
            "title": f"{row.label}, seed {row.seed}",
            "row": row,
            "failing": failing_layers(row.failing),
            "verdicts": _html(pd.DataFrame([one.model_dump() for one in row.verdicts])),
            "recipe": RunFolder(row.path).read("recipe.yaml").decode(),
        }
        for row in each(runs)
    ]
    return _html(rows, [*_COLUMNS.values()]), shown


def _html(table: pd.DataFrame, columns: Sequence[str] | None = None) -> str:
    """The columns that are not empty, as HTML."""
    shown = table if columns is None else table[[name for name in columns if name in table]]
    shown = shown.dropna(axis="columns", how="all")
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
    for figure in _all_figures(extra):
        for view in views[figure.of]:
            kind = view.kind if figure.of == "noise" else ""
            for drawing in figure.draw(view):
                parts = file_name(view.name) if view.name else "", kind, figure.name, drawing.name
                stem, spec = "-".join(filter(None, parts)), drawing.chart.to_dict(validate=False)
                out.mkdir(parents=True, exist_ok=True)
                for one in formats:
                    (out / f"{stem}.{one}").write_bytes(convert[one](spec))
                names = {"family": view.name, "name": figure.name}
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
    """Vega, Vega-Lite and Vega-Embed in one script; made once, which takes seconds."""
    import vl_convert

    path = cache_folder() / f"vega-{metadata.version('vl-convert-python')}.js"
    if not path.is_file():
        write_text(path, vl_convert.javascript_bundle())  # type: ignore[call-arg]
    # In a page, "</script" would end the script.
    return path.read_text(encoding="utf-8").replace("</script", "<\\/script")
