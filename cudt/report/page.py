"""One self-contained HTML page; every text goes through the template's escaping."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from cudt import __version__
from cudt.noise.base import scale_of
from cudt.report import exhibits, interactive
from cudt.report.collect import Collected, ReadRun
from cudt.report.compare import SIDES, Comparison, compare, failing_layers
from cudt.report.exhibits import Pictures
from cudt.report.figures import Figure
from cudt.report.figures.words import labels, short
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
_FAVOURS = {"constrained": "the constrained model", "erm": "the unconstrained one", "neither": "neither"}
_ALONE = "over test examples of single runs, which say nothing about other training seeds,"


@dataclass(frozen=True)
class Material:
    """What the page is made of."""

    collected: Collected
    compared: list[ReadRun]
    """Those that are part of a comparison: not the runs of an ablation."""
    groups: list[Group]
    summary: pd.DataFrame
    layouts: list[tuple[Layout, bool]]
    """With whether anything of ours stands in it."""
    figures: list[Figure]
    sweeps: list[ReadSweep]

    @cached_property
    def comparisons(self) -> list[dict[str, Any]]:
        """What came out, a row for each comparison."""
        return comparisons(self)


def render(made: Material) -> str:
    """The page: what came out first, then a section for each recipe, tables, figures over all runs, sweeps."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cudt.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=_number, signed=_signed, setting=_setting)
    pictures = Pictures()
    recipes = by_recipe(made.groups)
    sections = [_section(recipe, groups, made, pictures) for recipe, groups in recipes.items()]
    shown = {
        "figures": _figures([figure for figure in made.figures if not figure.recipe], pictures),
        "sweeps": [_sweep(sweep, made.figures, pictures) for sweep in made.sweeps],
    }
    data = [interactive.section(groups) for groups in recipes.values()]
    damaged = [line for section in sections for line in section["damaged"]]
    damaged += [run["problem"] for section in data for run in section["training"] if "problem" in run]
    return environment.get_template("page.html").render(
        version=__version__,
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        css=Markup((_HERE / "page.css").read_text(encoding="utf-8")),
        script=Markup((_HERE / "page.js").read_text(encoding="utf-8")),
        plotly=Markup(get_plotlyjs()),
        data=data,
        columns=_COLUMNS,
        compared=made.comparisons,
        verdict=verdict(made.comparisons),
        reasons=Counter(row["reason"] for row in made.comparisons if not row["unit"]).most_common(),
        sections=sections,
        layouts=[_layout(*one) for one in made.layouts],
        warnings=[*made.collected.warnings, *damaged, *pictures.note()],
        n_runs=len(made.collected.runs),
        **shown,
    )


# ---------------------------------------------------------------- what came out


def comparisons(made: Material) -> list[dict[str, Any]]:
    """Constrained against ERM in each recipe, depth, γ_train and kind of noise, as compare.py has them."""
    named = {key: name for recipe in made.collected.recipes for key, name in _labels(made.groups, recipe).items()}
    rows = []
    for runs in _places(made.compared):
        for noise in dict.fromkeys(kind for run in runs for kind in run.ood["perturbation"].unique()):
            rows.append(_comparison(compare(runs, str(noise)), runs, named))
    return rows


def _places(runs: Sequence[ReadRun]) -> list[list[ReadRun]]:
    """The runs of both objectives that may be compared; unconstrained models of another make each by themselves."""
    places: dict[tuple[Any, ...], list[ReadRun]] = {}
    for run in runs:
        task = run.run.recipe.settings.task.model_dump_json()
        place = (run.recipe, run.info.layers, run.info.gamma_train, run.metric, task)
        places.setdefault(place, []).append(run)
    found = []
    for place in sorted(places):
        constrained, erm = ([run for run in places[place] if run.objective == name] for name in SIDES)
        for make in dict.fromkeys(_make(run) for run in erm):
            alike = [run for run in constrained if _make(run) == make] or constrained
            if alike:
                found.append([*alike, *(run for run in erm if _make(run) == make)])
    return found


def _make(run: ReadRun) -> str:
    return run.run.recipe.settings.model.model_dump_json()


def _comparison(compared: Comparison, runs: Sequence[ReadRun], named: dict[Any, str]) -> dict[str, Any]:
    first, ours = runs[0], compared.sides["constrained"]
    between = compared.difference("ood_mean")
    other = "" if len({_make(run) for run in runs}) == 1 else ", ERM of another make"
    numbers = {
        f"{quantity}_{side}": compared.mean(side, quantity) for quantity in ("id_mean", "ood_mean") for side in SIDES
    }
    return {
        **vars(between),
        **numbers,
        "recipe": first.recipe,
        "label": named[ours.runs[0].group] if ours.runs else "constrained",
        "setting": f"L = {first.info.layers}, γ_train = {first.info.gamma_train:g}, {compared.noise}{other}",
        "metric": first.metric,
        "arrow": "↑" if first.info.metric.higher_is_better else "↓",
        "infeasible": "; ".join(ours.infeasible),
        "runs": _how(compared),
    }


def _how(compared: Comparison) -> str:
    """How many runs stand behind each side."""
    ours, erm = (compared.sides[name].how for name in SIDES)
    return ours if ours == erm else f"{ours} against {erm}"


def verdict(compared: Sequence[dict[str, Any]]) -> str:
    """All comparisons in a sentence or two; intervals over examples of single runs apart from those over seeds."""
    told = []
    units = {"over training seeds": ("seeds", "seeds paired"), _ALONE: ("examples",)}
    for what, names in units.items():
        counts = Counter(row["better"] or "neither" for row in compared if row["unit"] in names)
        if counts:
            sides = [f"{counts[key]} in favour of {words}" for key, words in _FAVOURS.items() if counts[key]]
            told.append(f"{what} {', '.join(sides)}")
    if without := sum(not row["unit"] for row in compared):
        told.append(f"{without} without an interval")
    things = "one comparison" if len(compared) == 1 else f"{len(compared)} comparisons"
    return f"Out of distribution, of {things}: {'; '.join(told)}." if told else ""


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
    info = sweep.info
    named = {"setting": "setting", "arm": "arm", "score": "score", "feasible": "feasible", **SPENT}
    # A setting's name says its values.
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
        "figures": _figures([figure for figure in figures if figure.recipe == sweep.section], pictures),
        "command": info.command,
    }


def _run(run: ReadRun, label: str) -> dict[str, Any]:
    return {
        "path": str(run.run.path),
        "label": label,
        "info": run.info,
        "failing": failing_layers(run),
        "verdicts": run.info.verdicts,
        # As the run keeps it: to write it once more takes long.
        "recipe": (run.run.path / "recipe.yaml").read_text(encoding="utf-8"),
        "commands": [run.info.command, *evaluation_commands(run)],
    }


def evaluation_commands(run: ReadRun) -> list[str]:
    """What repeats the evaluation, levels and noise seeds included, whatever the recipe says."""
    commands = []
    for kind, rows in run.ood.groupby("perturbation"):
        option = f"--{scale_of(str(kind)).setting}"
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
