"""The report as one self-contained HTML page; the template escapes every text."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from cudt import __version__
from cudt.noise import scale_of
from cudt.report import exhibits, headline, interactive
from cudt.report.collect import GroupKey, ReadRun
from cudt.report.comparable import families
from cudt.report.compare import failing_layers
from cudt.report.exhibits import Pictures
from cudt.report.figures import Figure
from cudt.report.groups import by_recipe
from cudt.report.material import Material
from cudt.report.sections import PageSection
from cudt.report.sweeps import PRUNED, SPENT, ReadSweep
from cudt.report.text_table import TextTable
from cudt.runs import checksums

_HERE = Path(__file__).parent

#: Column of table.csv, heading on the page.
_COLUMNS = {
    "label": "objective",
    "gamma_train": "γ_train",
    "seeds": "seeds",
    "noise_seeds": "noise seeds",
    "feasible": "feasible",
    "monotone": "monotone",
    "perturbation": "noise",
    "id_mean": "ID",
    "ood_mean": "OOD",
    "grid_mean": "mean",
    "input_mean": "mean of the noisy input",
    "auc": "AUC",
    "range": "over",
    "validation_loss": "validation f_L",
}
#: Figures that only a printed page shows: on screen, the interactive charts have the same content.
_PRINTED = ("descent-and-robustness", "layer-ratios")


def render(
    made: Material, figures: Sequence[Figure] = (), parts: Sequence[PageSection] = ()
) -> str:
    """The page: comparisons first, then a section for each recipe, tables, figures over all runs,
    sweeps.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cudt.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=_number, signed=_signed, setting=_setting)
    pictures = Pictures()
    recipes = by_recipe(made.groups)
    runs = families(made.collected.runs)
    compared = {run.group for run in made.compared}
    data = [interactive.section(groups, compared) for groups in recipes.values()]
    sections = [
        _section(recipe, runs[recipe], made, parts, figures, pictures) for recipe in recipes
    ]
    shown = {
        "figures": _figures([figure for figure in figures if not figure.recipe], pictures),
        "sweeps": [_sweep(sweep, figures, pictures) for sweep in made.sweeps],
    }
    # The command prints them, too.
    made.collected.warnings.extend(
        [*(line for one in sections for line in one["damaged"]), *pictures.note()]
    )
    return environment.get_template("page.html").render(
        version=__version__,
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        css=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        script=Markup((_HERE / "page.js").read_text(encoding="utf-8")),
        plotly=Markup(get_plotlyjs()),
        data=data,
        columns=_columns(made.summary),
        compared=made.comparisons,
        verdict=headline.verdict(made.comparisons),
        reasons=Counter(row["reason"] for row in made.comparisons if not row["unit"]).most_common(),
        sections=sections,
        tables=[_table(*one) for one in made.tables],
        warnings=made.collected.warnings,
        n_runs=len(made.collected.runs),
        n_recipes=len(made.collected.recipes),
        **shown,
    )


def _columns(summary: pd.DataFrame) -> dict[str, str]:
    """The columns of the page's tables; that of the noisy input only if a task has one."""
    has_input = not summary.empty and summary["input_mean"].notna().any()
    return {
        column: heading
        for column, heading in _COLUMNS.items()
        if has_input or column != "input_mean"
    }


# ---------------------------------------------------------------- sections


def _section(
    recipe: str,
    runs: Sequence[ReadRun],
    made: Material,
    parts: Sequence[PageSection],
    figures: Sequence[Figure],
    pictures: Pictures,
) -> dict[str, Any]:
    keys = {run.group for run in runs}
    every = made.summary.to_dict("records")
    keyed = [(row, (row["recipe"], row["objective"], row["variant"])) for row in every]
    rows = [{**row, "label": made.labels[key]} for row, key in keyed if key in keys]
    completed, damaged = exhibits.completions(runs)
    return {
        "recipe": recipe,
        "reproduces": runs[0].run.recipe.settings.reproduces,
        "metric": runs[0].metric,
        "rows": rows,
        "figures": _figures([figure for figure in figures if figure.recipe == recipe], pictures),
        "parts": _parts(parts, recipe),
        "samples": exhibits.samples(runs, pictures),
        "completions": completed,
        "damaged": damaged,
        "runs": [_run(run, made.labels) for run in runs],
    }


def _figures(figures: Sequence[Figure], pictures: Pictures) -> list[dict[str, Any]]:
    shown = [
        {
            "title": figure.title,
            "png": pictures.inline(figure.png),
            "is_printed_only": figure.png.stem.endswith(_PRINTED),
        }
        for figure in figures
    ]
    return [figure for figure in shown if figure["png"]]


def _parts(parts: Sequence[PageSection], recipe: str) -> list[dict[str, Any]]:
    mine = [part for part in parts if part.recipe == recipe]
    return [
        {
            "title": part.title,
            "text": part.text,
            "tables": [_table(one, True) for one in part.tables],
        }
        for part in mine
    ]


def _table(table: TextTable, is_filled: bool) -> dict[str, Any]:
    return {
        **vars(table),
        "has_groups": any(name for name, _ in table.groups),
        "is_open": is_filled,
    }


def _sweep(sweep: ReadSweep, figures: Sequence[Figure], pictures: Pictures) -> dict[str, Any]:
    """A sweep's section: the best trial of each arm, what each arm spent, and what failed."""
    info = sweep.info
    named = {"setting": "setting", "arm": "arm", "score": "score", "feasible": "feasible", **SPENT}
    if "pruned" in sweep.best:
        named |= PRUNED
    # The name of a setting includes its values.
    searched = {key: key for key in sweep.keys if key not in info.settings}
    columns = {**named, **searched, "run": "run"}
    if not info.settings:
        del columns["setting"]
    return {
        "title": sweep.title,
        "info": info,
        "score_name": sweep.score_name,
        "columns": columns,
        "rows": sweep.best.astype(object).where(sweep.best.notna(), "").to_dict("records"),
        "failed": sweep.trials[sweep.trials["state"] == "failed"].to_dict("records"),
        "figures": _figures(
            [figure for figure in figures if figure.recipe == sweep.section], pictures
        ),
        "command": info.command,
    }


def _run(run: ReadRun, named: Mapping[GroupKey, str]) -> dict[str, Any]:
    return {
        "path": str(run.run.path),
        "label": named[run.group],
        "info": run.info,
        "failing": failing_layers(run),
        "verdicts": run.info.verdicts,
        "weights": run.run.weights,
        "epochs": run.settings.get("training.epochs"),
        # The run's own file: rendering the recipe again takes long.
        "recipe": checksums.read_checked(run.run.path, "recipe.yaml").decode(),
        "commands": [run.info.command, *evaluation_commands(run)],
    }


def evaluation_commands(run: ReadRun) -> list[str]:
    """The commands that repeat a run's evaluation, with its levels and noise seeds."""
    commands = []
    for kind, rows in run.ood.groupby("perturbation"):
        option = f"--{scale_of(str(kind)).setting}"
        levels = ",".join(f"{level:g}" for level in sorted(rows["gamma"].unique()))
        seeds = [
            word for seed in sorted(rows["seed"].unique()) for word in ("--noise-seed", str(seed))
        ]
        words = [
            "cudt",
            "eval-ood",
            str(run.run.path),
            "--perturbation",
            str(kind),
            option,
            levels,
            *seeds,
        ]
        if pictures := sum(strip.name.startswith(f"{kind}-") for strip in run.samples):
            words += ["--save-samples", str(pictures)]
        commands.append(shlex.join(words))
    return commands


# ---------------------------------------------------------------- numbers


def _number(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "" if pd.isna(value) else f"{value:.4f}" if abs(value) < 1000 else f"{value:.4g}"
    return str(value)


def _signed(value: Any) -> str:
    return "" if value is None or pd.isna(value) else f"{value:+.4g}"


def _setting(value: Any) -> str:
    """A searched value, a score or a count, with at most five digits."""
    return f"{value:.5g}" if isinstance(value, float) and not pd.isna(value) else _number(value)
