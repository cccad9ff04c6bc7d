"""One self-contained HTML page; every text goes through the template's escaping."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from cudt import __version__
from cudt.levels import PROBABILITY, scale_of
from cudt.report import exhibits, interactive, paper
from cudt.report.collect import Collected, ReadRun
from cudt.report.exhibits import Pictures
from cudt.report.figures import Figure
from cudt.report.figures.style import short
from cudt.report.figures.words import labels
from cudt.report.groups import Group, by_recipe
from cudt.report.layout import Layout
from cudt.report.sweeps import SPENT, ReadSweep

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
    "auc": "AUC",
    "range": "over",
    "validation_loss": "validation f_L",
}
#: Figures that the interactive charts show too; they are for paper.
_DRAWN_ABOVE = ("descent-and-robustness", "layer-ratios")
_WHERES = {"id_mean": "ID", "ood_mean": "OOD"}


@dataclass(frozen=True)
class Material:
    """What the page is made of."""

    collected: Collected
    groups: list[Group]
    summary: pd.DataFrame
    differences: pd.DataFrame
    layouts: list[tuple[Layout, bool]]
    """With whether anything of ours stands in it."""
    figures: list[Figure]
    sweeps: list[ReadSweep]


def render(made: Material) -> str:
    """The page: what came out first, then a section for each recipe, tables, figures over all runs, sweeps."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cudt.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=_number, signed=_signed, setting=_setting)
    pictures = Pictures()
    compared = comparisons(made)
    recipes = by_recipe(made.groups)
    sections = [_section(recipe, groups, made, pictures) for recipe, groups in recipes.items()]
    shown = {
        "figures": _figures([figure for figure in made.figures if not figure.recipe], pictures),
        "sweeps": [_sweep(sweep, made.figures, pictures) for sweep in made.sweeps],
    }
    damaged = [line for section in sections for line in section["damaged"]]
    return environment.get_template("page.html").render(
        version=__version__,
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        css=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        script=Markup((_HERE / "page.js").read_text(encoding="utf-8")),
        plotly=Markup(get_plotlyjs()),
        data=[interactive.section(groups) for groups in recipes.values()],
        columns=_COLUMNS,
        compared=compared,
        verdict=verdict(compared),
        reasons=Counter(row["reason"] for row in compared if not row["unit"]).most_common(),
        sections=sections,
        layouts=[_layout(*one) for one in made.layouts],
        warnings=[*made.collected.warnings, *damaged, *pictures.note()],
        n_runs=len(made.collected.runs),
        **shown,
    )


# ---------------------------------------------------------------- what came out


def comparisons(made: Material) -> list[dict[str, Any]]:
    """Constrained against ERM in each recipe, depth, γ_train and noise: the best variant of each by validation data."""
    best = _best_variants(made.collected.runs)
    named = {key: name for recipe in made.collected.recipes for key, name in _labels(made.groups, recipe).items()}
    numbers = {
        (row["recipe"], row["objective"], row["variant"], row["perturbation"]): row
        for row in made.summary.to_dict("records")
    }
    rows = []
    places = ["recipe", "objective", "variant", "against", "against_variant", "perturbation"]
    for key, mine in made.differences.groupby(places, sort=False):
        recipe, objective, variant, against, against_variant, kind = (str(part) for part in key)
        groups = [(recipe, objective, variant), (recipe, against, against_variant)]
        sides = [numbers.get((*group, kind)) for group in groups]
        if objective != "constrained" or not all(sides) or any(group not in best for group in groups):
            continue
        runs = [run for run in made.collected.runs if run.group == groups[0]]
        rows.append(_comparison(named[groups[0]], runs, mine.set_index("quantity"), *sides))
    return rows


def _best_variants(runs: Sequence[ReadRun]) -> set[tuple[str, str, str]]:
    """Of the variants of an objective at one depth and γ_train, the one with the best run on validation data."""
    places: dict[tuple[Any, ...], list[ReadRun]] = {}
    for run in runs:
        place = (run.recipe, run.objective, run.info.get("layers"), run.info["gamma_train"])
        places.setdefault(place, []).append(run)
    return {paper.best_by_validation(mine)[0].group for mine in places.values()}


def _comparison(label: str, runs: Sequence[ReadRun], quantities: pd.DataFrame, ours: Any, erm: Any) -> dict[str, Any]:
    info = runs[0].info
    row = {name: ours[name] for name in ("recipe", "metric")}
    depth = f"L = {info['layers']}, " if "layers" in info else ""
    row["setting"] = f"{depth}γ_train = {ours['gamma_train']:g}, {ours['perturbation']}"
    row |= {"label": label, "arrow": "↑" if ours["higher_is_better"] else "↓"}
    row |= {f"{name}_ours": ours[name] for name in _WHERES} | {f"{name}_erm": erm[name] for name in _WHERES}
    row["infeasible"] = "; ".join(told for run in runs if (told := paper.failing_layers(run)))
    found = next((name for name in ("ood_mean", "mean") if name in quantities.index), None)
    if found is not None:
        row |= {
            name: quantities.loc[found, name] for name in ("difference", "low", "high", "unit", "n", "better", "reason")
        }
    return {"difference": None, "unit": "", "n": 0, "better": "", "reason": "no level in common", **row}


def verdict(compared: Sequence[dict[str, Any]]) -> str:
    """All comparisons in a sentence."""
    if not compared:
        return ""
    counts = Counter(row["better"] or ("undecided" if row["unit"] else "no interval") for row in compared)
    words = {
        "constrained": "the constrained model is better",
        "erm": "the unconstrained one is",
        "undecided": "the interval holds 0",
        "no interval": "there is no interval",
    }
    told = [f"in {counts[key]} {text}" for key, text in words.items() if counts[key]]
    things = "one comparison" if len(compared) == 1 else f"{len(compared)} comparisons"
    return f"Out of distribution, of {things}: {', '.join(told)}."


# ---------------------------------------------------------------- sections


def _section(recipe: str, groups: Sequence[Group], made: Material, pictures: Pictures) -> dict[str, Any]:
    runs = [run for run in made.collected.runs if run.recipe == recipe]
    named = _labels(made.groups, recipe)
    rows = made.summary[made.summary["recipe"] == recipe].to_dict("records")
    for row in rows:
        row["label"] = named[(recipe, row["objective"], row["variant"])]
    completed, damaged = exhibits.completions(runs)
    return {
        "recipe": recipe,
        "reproduces": runs[0].run.recipe.settings.reproduces,
        "metric": runs[0].metric,
        "rows": rows,
        "figures": _figures([figure for figure in made.figures if figure.recipe == recipe], pictures),
        "samples": exhibits.samples(runs, pictures),
        "completions": completed,
        "damaged": damaged,
        "runs": [_run(run, named[run.group]) for run in runs],
    }


def _labels(groups: Sequence[Group], recipe: str) -> dict[tuple[str, str, str], str]:
    return labels([group for group in groups if group.recipe == recipe], "", counts=False, written=short)


def _figures(figures: Sequence[Figure], pictures: Pictures) -> list[dict[str, Any]]:
    shown = [
        {
            "title": figure.title,
            "png": pictures.inline(figure.png),
            "is_for_paper": figure.png.stem.endswith(_DRAWN_ABOVE),
        }
        for figure in figures
    ]
    return [figure for figure in shown if figure["png"]]


def _layout(layout: Layout, is_filled: bool) -> dict[str, Any]:
    return {**vars(layout), "has_groups": any(name for name, _ in layout.groups), "is_open": is_filled}


def _sweep(sweep: ReadSweep, figures: Sequence[Figure], pictures: Pictures) -> dict[str, Any]:
    """What was searched by whom, the best of each arm and what it spent."""
    facts = sweep.facts
    named = {"setting": "setting", "arm": "arm", "score": "score", "feasible": "feasible", **SPENT}
    # A setting's name says its values.
    searched = {key: key for key in sweep.keys if key not in facts["settings"]}
    columns = {**named, **searched, "run": "run"}
    if not facts["settings"]:
        del columns["setting"]
    return {
        "title": sweep.title,
        "facts": facts,
        "score_name": sweep.score_name,
        "columns": columns,
        "rows": sweep.best.astype(object).where(sweep.best.notna(), "").to_dict("records"),
        "failed": sweep.trials[sweep.trials["state"] == "failed"].to_dict("records"),
        "figures": _figures([figure for figure in figures if figure.recipe == sweep.section], pictures),
        "command": facts["command"],
    }


def _run(run: ReadRun, label: str) -> dict[str, Any]:
    return {
        "path": str(run.run.path),
        "label": label,
        "info": run.info,
        "failing": paper.failing_layers(run).rpartition(" at ")[2],
        "verdicts": run.info["verdicts"],
        # As the run keeps it: to write it once more takes long.
        "recipe": (run.run.path / "recipe.yaml").read_text(encoding="utf-8"),
        "commands": [run.info["command"], *evaluation_commands(run)],
    }


def evaluation_commands(run: ReadRun) -> list[str]:
    """What repeats the evaluation, levels and noise seeds included, whatever the recipe says."""
    commands = []
    for kind, rows in run.ood.groupby("perturbation"):
        option = "--probabilities" if scale_of(str(kind)) is PROBABILITY else "--gammas"
        levels = ",".join(f"{level:g}" for level in sorted(rows["gamma"].unique()))
        seeds = [word for seed in sorted(rows["seed"].unique()) for word in ("--noise-seed", str(seed))]
        words = ["cudt", "eval-ood", str(run.run.path), "--perturbation", str(kind), option, levels, *seeds]
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
    """A searched value, a score, or a count: as short as it can be."""
    return f"{value:.5g}" if isinstance(value, float) and not pd.isna(value) else _number(value)
