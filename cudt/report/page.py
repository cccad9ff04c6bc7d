"""One self-contained HTML page; every text goes through the template's escaping."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from cudt import __version__
from cudt.levels import PROBABILITY, scale_of, training_level
from cudt.report.collect import Collected, ReadRun
from cudt.report.figures import Figure
from cudt.report.paired import Pair, pairs
from cudt.report.sweeps import SPENT, ReadSweep

#: Column of table.csv, heading on the page.
_COLUMNS = {
    "label": "objective",
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

#: Pictures are large, and the page holds them all; the rest is in the run folders.
_MOST_SAMPLES = 3


def render(
    collected: Collected, summary: pd.DataFrame, figures: Sequence[Figure], sweeps: Sequence[ReadSweep] = ()
) -> str:
    """The page: what came out first, then a section for each recipe and each sweep."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cudt.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = _number
    sections = [_section(recipe, collected, summary, figures) for recipe in collected.recipes]
    return environment.get_template("page.html").render(
        version=__version__,
        written=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        columns=_COLUMNS,
        sections=sections,
        sweeps=[_sweep(sweep, figures) for sweep in sweeps],
        warnings=collected.warnings,
        n_runs=len(collected.runs),
    )


def _section(recipe: str, collected: Collected, summary: pd.DataFrame, figures: Sequence[Figure]) -> dict[str, Any]:
    runs = [run for run in collected.runs if run.recipe == recipe]
    rows = summary[summary["recipe"] == recipe]
    pictures = [figure for figure in figures if figure.recipe == recipe]
    return {
        "recipe": recipe,
        "reproduces": runs[0].run.recipe.settings.reproduces,
        "metric": runs[0].metric,
        "findings": findings(rows, pairs(runs)),
        "rows": rows.to_dict("records"),
        "figures": _figures(pictures),
        "samples": _samples(runs),
        "runs": [_run(run) for run in runs],
    }


def _figures(figures: Sequence[Figure]) -> list[dict[str, str]]:
    return [{"title": figure.title, "png": _inline(figure.png)} for figure in figures]


def _sweep(sweep: ReadSweep, figures: Sequence[Figure]) -> dict[str, Any]:
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
        "figures": _figures([figure for figure in figures if figure.recipe == sweep.title]),
        "command": facts["command"],
    }


def findings(rows: pd.DataFrame, compared: Sequence[Pair]) -> list[str]:
    """One sentence for each pair of a constrained group with ERM: what the curves did, and on how many seeds.

    Only where both were evaluated over the same levels; `rows` are those of the summary.
    """
    keys = ["recipe", "objective", "variant", "perturbation"]
    by_group = {tuple(row[key] for key in keys): row for _, row in rows.iterrows()}
    sentences = []
    for pair in compared:
        groups = [(*side[0].group, pair.perturbation) for side in (pair.ours, pair.erm)]
        # A group whose seeds share no level has no row under this noise.
        found = [by_group[group] for group in groups if group in by_group]
        if len(found) < 2 or found[0]["objective"] != "constrained":
            continue
        if all(found[0][key] == found[1][key] for key in ("range", "levels")):
            sentences.append(_finding(*found))
    return sentences


def _finding(constrained: pd.Series[Any], erm: pd.Series[Any]) -> str:
    kind = constrained["perturbation"]
    inside = f"{scale_of(kind).symbol} ≤ {training_level(kind, constrained['gamma_train']):g}"
    wheres = {"id_mean": f"in distribution ({inside})", "ood_mean": "out of distribution"}
    shown = [name for name in wheres if not (pd.isna(constrained[name]) or pd.isna(erm[name]))]
    whose = [f"{erm['label']}'s ".replace("erm", "ERM"), ""]
    parts = [
        f"{constrained[name]:.3f} against {owner}{erm[name]:.3f} {wheres[name]}"
        for name, owner in zip(shown, whose, strict=False)
    ]
    return (
        f"Under {kind} noise the {constrained['label']} model's mean "
        f"{constrained['metric']} is {', and '.join(parts)} "
        f"({constrained['evaluated']} and {erm['evaluated']} seeds)."
    )


def _run(run: ReadRun) -> dict[str, Any]:
    return {
        "path": str(run.run.path),
        "objective": run.objective,
        "info": run.info,
        "verdicts": run.info["verdicts"],
        "recipe": run.run.recipe.text(),
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


def _samples(runs: Sequence[ReadRun]) -> list[dict[str, Any]]:
    """For some of the saved test examples, the pictures of a run of each group; the same example side by side."""
    # Seeds look alike, and pictures are large.
    runs = list({run.group: run for run in reversed(runs) if run.samples}.values())[::-1]
    names = list(dict.fromkeys(strip.name for run in runs for strip in run.samples))
    shown = []
    for name in names[:_MOST_SAMPLES]:
        strips = [(run, strip) for run in runs for strip in run.samples if strip.name == name]
        pictures = [
            {
                "title": f"{run.objective}, seed {run.seed}, {run.run.path.name}",
                "strip": _inline(strip),
                "moving": _inline(moving) if (moving := strip.with_suffix(".gif")).is_file() else None,
            }
            for run, strip in strips
        ]
        shown.append({"name": name.removesuffix(".png"), "pictures": pictures})
    return shown


def _inline(picture: Path) -> str:
    kind = picture.suffix.removeprefix(".")
    return f"data:image/{kind};base64," + base64.b64encode(picture.read_bytes()).decode()


def _number(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "" if pd.isna(value) else f"{value:.4f}" if abs(value) < 1000 else f"{value:.4g}"
    return str(value)
