"""The page: the answer, Figure 1 and one table on the first screen, everything else folded."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import pandas as pd
from markupsafe import Markup

from cudt import __version__
from cudt.config import plugins
from cudt.config.levels import scale_of
from cudt.report.compare import SIDES, failing_layers, labels
from cudt.report.frames import each
from cudt.utils.errors import UserError
from cudt.utils.files import cache_folder, file_name, write_text

if TYPE_CHECKING:
    from cudt.report import Report
    from cudt.report.charts import Drawing, Figure, View

#: Column of table.csv, heading on the page.
_COLUMNS = {
    **{"label": "objective", "gamma_train": "γ_train", "seeds": "seeds", "feasible": "feasible"},
    **{"monotone": "monotone", "perturbation": "noise", "id_mean": "ID", "ood_mean": "OOD"},
    **{"grid_mean": "mean", "input_mean": "noisy input", "auc": "AUC", "range": "over"},
}
#: Test examples and completions shown of all that were saved, and the bytes of all pictures.
_MOST_SAMPLES, _MOST_ANSWERS, _MOST_BYTES = 2, 3, 4_000_000


@dataclass(frozen=True)
class _Shown:
    """A figure that was saved."""

    family: str
    name: str
    caption: str
    spec: dict[str, Any]


def write(made: Report, out: Path, extra: Sequence[str], formats: Sequence[str]) -> None:
    """Draw the figures into `out`/figures and write `out`/index.html."""
    shown = [*_figures(made, out / "figures", extra, formats)] if formats else []
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cudt.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=_number, signed=_signed)
    first = [n for n, one in enumerate(shown) if one.name == "descent-and-robustness"]
    text = environment.get_template("page.html").render(
        version=__version__,
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        verdict=made.verdict,
        rows=[_row(one) for one in made.comparisons],
        figures=shown,
        first=first,
        sections=[*_sections(made, [n for n in range(len(shown)) if n not in first], shown)],
        over_all=[n for n, one in enumerate(shown) if not one.family],
        sweeps=made.sweeps,
        swept={
            s.name: [n for n, one in enumerate(shown) if one.family == s.name] for s in made.sweeps
        },
        tables=made.tables,
        warnings=made.warnings,
        runs=made.frames.runs,
        # "<" would end the script.
        specs=Markup(json.dumps([one.spec for one in shown]).replace("<", "\\u003c")),
        vega=Markup(_vega() if shown else ""),
    )
    write_text(out / "index.html", text)


# ---------------------------------------------------------------- figures


def _figures(
    made: Report, out: Path, extra: Sequence[str], formats: Sequence[str]
) -> Iterator[_Shown]:
    """Draw and save every figure that the runs have data for."""
    import vl_convert

    convert: dict[str, Any] = {
        "png": lambda spec: vl_convert.vegalite_to_png(spec, scale=2),
        "svg": lambda spec: vl_convert.vegalite_to_svg(spec).encode(),
        "pdf": vl_convert.vegalite_to_pdf,
    }
    out.mkdir(parents=True)
    for family, stem, drawing, name in _drawings(made, extra):
        spec = drawing.chart.to_dict(validate=False)
        for one in formats:
            (out / f"{stem}.{one}").write_bytes(convert[one](spec))
        yield _Shown(family, name, drawing.caption, spec)


def _drawings(made: Report, extra: Sequence[str]) -> Iterator[tuple[str, str, Drawing, str]]:
    """Family, file name without its suffix, drawing and figure."""
    from cudt.report.charts import View
    from cudt.report.sweeps import slices

    frames = made.frames
    every, compared = View(frames), View(frames.of(made.compared.index))
    views = {is_ablation: _Views(view) for is_ablation, view in ((True, every), (False, compared))}
    for figure in _all_figures(extra):
        for view in views[figure.of_ablations].of(figure):
            parts = [file_name(view.name)] if view.name else []
            parts += [view.kind] if figure.of == "noise" else []
            for drawing in figure.draw(view):
                stem = "-".join([*parts, figure.name, *([drawing.name] if drawing.name else [])])
                yield view.name, stem, drawing, figure.name
    for sweep in made.sweeps:
        for drawing in slices(sweep):
            yield sweep.name, f"sweep-{file_name(sweep.name)}", drawing, "slices"


class _Views:
    """What figures are drawn from; families are split once, since choosing their runs takes time."""

    def __init__(self, view: View) -> None:
        self.view = view

    @cached_property
    def families(self) -> list[View]:
        return self.view.families()

    def of(self, figure: Figure) -> list[View]:
        from cudt.report.charts import View, noise_kinds

        if figure.of == "all":
            return [self.view]
        if figure.of == "recipe":
            return self.families
        return [View(v.frames, v.name, kind) for v in self.families for kind in noise_kinds(v.runs)]


def _all_figures(extra: Sequence[str]) -> list[Figure]:
    from cudt.report.charts import Figure
    from cudt.report.figures import FIGURES

    found = [*FIGURES]
    for path in dict.fromkeys(extra):
        figure = plugins.implementation("figure", path)
        if not isinstance(figure, Figure):
            raise UserError(f"figure '{path}': FIGURE must be a cudt.report.charts.Figure")
        if figure.name in {one.name for one in found}:
            raise UserError(f"figure '{path}': another figure is named '{figure.name}'; rename it")
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


# ---------------------------------------------------------------- what the template shows


def _row(one: Any) -> dict[str, Any]:
    """A row of the first table."""
    first = (
        one.frames.runs.loc[next(run for side in one.sides.values() for run in side.runs)]
        if len(one.runs)
        else None
    )
    hows = [*dict.fromkeys(one.sides[side].how for side in SIDES if one.sides[side].runs)]
    means = {f"{q}_{side}": one.mean(side, f"{q}_mean") for q in ("id", "ood") for side in SIDES}
    kind = first["constraints"] if first is not None else ""
    return {
        **vars(one.difference("ood_mean")),
        **means,
        "family": first["family"] if first is not None else "not evaluated",
        "setting": f"L = {first['n_layers']}, γ_train = {first['gamma_train']:g}, {one.noise}"
        + (f", {kind}" if kind else "")
        if first is not None
        else "",
        "metric": one.metric.replace("_", " "),
        "arrow": "" if first is None else "↑" if first["higher_is_better"] else "↓",
        "infeasible": one.sides[SIDES[0]].infeasible_text,
        "how": " against ".join(hows),
    }


def _sections(made: Report, numbers: list[int], shown: list[_Shown]) -> Iterator[dict[str, Any]]:
    """Figures, numbers, exhibits and runs of each family."""
    runs, named, room = made.frames.runs, labels(made.frames.runs), [_MOST_BYTES]
    rows = made.table.to_dict("records")
    for family, mine in runs.groupby("family", sort=False):
        groups = {*mine["group"]}
        own = [r for r in rows if (r["recipe"], r["objective"], r["variant"]) in groups]
        yield {
            "family": family,
            "reproduces": mine["reproduces"].iloc[0],
            "figures": [n for n in numbers if shown[n].family == family],
            "columns": {k: v for k, v in _COLUMNS.items() if any(_number(r[k]) for r in own)},
            "rows": own,
            "samples": _samples(made, mine, room),
            "answers": _answers(made, mine),
            "runs": [
                {
                    "row": row,
                    "label": named[row.group],
                    "failing": failing_layers(row.failing),
                    "recipe": made.frames.recipe_text(row.Index),
                    "commands": [row.command, *_evaluations(made, row)],
                }
                for row in each(mine)
            ],
        }


def _exhibited(runs: pd.DataFrame) -> pd.DataFrame:
    """The best run of each objective on validation data."""
    return runs.sort_values("validation_loss", kind="stable").drop_duplicates("objective")


def _samples(made: Report, runs: pd.DataFrame, room: list[int]) -> list[dict[str, str]]:
    """Pictures of the same test examples by one run of each objective, as far as there is room."""
    shown = []
    for row in each(_exhibited(runs)):
        for name, content in [*made.frames.samples(row.Index).items()][:_MOST_SAMPLES]:
            room[0] -= len(content)
            if room[0] >= 0:
                data = base64.b64encode(content).decode()
                shown.append({"name": name, "objective": row.objective, "data": data})
    return sorted(shown, key=lambda one: one["name"])


def _answers(made: Report, runs: pd.DataFrame) -> list[dict[str, str]]:
    """Completions of the same instructions by one run of each objective."""
    shown = []
    for row in each(_exhibited(runs)):
        for name, answers in made.frames.completions(row.Index).items():
            shown += [
                {
                    "name": name,
                    "objective": row.objective,
                    "asked": one["instruction"],
                    "text": one["output"],
                }
                for one in answers[:_MOST_ANSWERS]
            ]
    return sorted(shown, key=lambda one: (one["name"], one["asked"]))


def _evaluations(made: Report, row: Any) -> Iterator[str]:
    """The commands that repeat a run's evaluation, with its levels and noise seeds."""
    points = made.frames.points[made.frames.points["run"] == row.Index]
    for kind, rows in points.groupby("perturbation"):
        levels = ",".join(f"{level:g}" for level in rows["gamma"])
        seeds = [word for seed in rows["drawn"].iloc[0] for word in ("--noise-seed", str(seed))]
        option = f"--{scale_of(str(kind)).setting}"
        words = ["eval-ood", str(row.path), "--perturbation", str(kind), option, levels, *seeds]
        yield shlex.join(["cudt", *words])


def _number(value: Any) -> str:
    """A number of a table in a few digits; a text as it is."""
    if isinstance(value, float):
        return "" if pd.isna(value) else f"{value:.4g}"
    return str(value)


def _signed(value: float) -> str:
    return "" if pd.isna(value) else f"{value:+.3g}"
