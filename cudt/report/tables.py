"""The numbers of a report, each with the number of seeds behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from cudt.evaluation.curves import area_under_curve, metric_and_ends
from cudt.noise.base import distribution, scale_of
from cudt.report.collect import ReadRun

_GROUP = ["recipe", "objective", "variant"]


def deviation(values: Sequence[float]) -> float:
    """The standard deviation over seeds, as every table has it."""
    return float(np.std(np.asarray(values, dtype=float), ddof=1))


def _per_run(runs: Sequence[ReadRun]) -> pd.DataFrame:
    """The metric of each run at each level with its interval, the noise seeds averaged; all at once, runs are many."""
    names = ["value", "low", "high"]
    levels = ["run", "perturbation", "gamma"]
    rows = pd.concat([run.ood.assign(run=place) for place, run in enumerate(runs)], ignore_index=True)
    spelled = {
        (place, spelling): name
        for place, run in enumerate(runs)
        for spelling, name in zip(metric_and_ends(run.metric), names, strict=True)
    }
    rows["name"] = [spelled.get(key) for key in zip(rows["run"], rows["metric"], strict=True)]
    rows["noise_seeds"] = rows.groupby(levels)["seed"].transform("nunique")
    # A pivot table would drop what is not a number, and a level with it.
    grouped = rows.groupby([*levels, "n", "noise_seeds", "name"])["value"]
    means = grouped.mean().where(grouped.count() == grouped.size())
    table = means.unstack("name").reindex(columns=names).reset_index()
    facts = [(*run.group, run.seed, run.metric, run.info.gamma_train) for run in runs]
    told = pd.DataFrame(facts, columns=[*_GROUP, "seed", "metric", "gamma_train"]).iloc[table.pop("run")]
    return pd.concat([table, told.reset_index(drop=True)], axis=1)


def curves(runs: Sequence[ReadRun]) -> pd.DataFrame:
    """The metric against the level: mean and standard deviation over the seeds of each group.

    `low` and `high` are the ends of one seed's 95 % interval over test examples, averaged over the seeds.
    Only levels that every evaluated seed of a group has: a mean must not change its seeds along a curve.
    """
    keys = [*_GROUP, "metric", "perturbation", "gamma", "place"]
    table = _per_run(runs)
    places = zip(table["perturbation"], table["gamma"], table["gamma_train"], strict=True)
    table["place"] = [distribution(*row) for row in places]
    evaluated = table.groupby([*_GROUP, "perturbation"])["seed"].transform("nunique")
    return (
        table[table.groupby(keys)["seed"].transform("nunique") == evaluated]
        .groupby(keys, as_index=False)
        .agg(
            mean=("value", _mean),
            std=("value", "std"),
            low=("low", "mean"),
            high=("high", "mean"),
            seeds=("seed", "nunique"),
            noise_seeds=("noise_seeds", "min"),
            n=("n", "first"),
        )
    )


def _mean(values: pd.Series[float]) -> float:
    return float(values.mean(skipna=False))


def uneven_grids(runs: Sequence[ReadRun]) -> list[str]:
    """A line for each group whose seeds were evaluated at different levels, some of which `curves` leaves out."""
    lines = []
    for (recipe, objective, variant, kind), rows in _per_run(runs).groupby([*_GROUP, "perturbation"]):
        seeds = rows.groupby("gamma")["seed"].nunique()
        missing = seeds.index[seeds < rows["seed"].nunique()]
        if len(missing):
            level = f"{scale_of(str(kind)).symbol} = " + ", ".join(f"{gamma:g}" for gamma in missing)
            lines.append(f"{recipe} {objective} {variant}, {kind}: not every seed was evaluated at {level}")
    return lines


def _over_groups(tables: Sequence[tuple[ReadRun, pd.DataFrame]]) -> pd.DataFrame:
    """The rows of one table of every run, each with its group and seed."""
    told = pd.DataFrame([(*run.group, run.seed) for run, _ in tables], columns=[*_GROUP, "seed"])
    repeated = told.iloc[np.repeat(np.arange(len(tables)), [len(table) for _, table in tables])]
    joined = pd.concat([table for _, table in tables], ignore_index=True)
    return pd.concat([joined, repeated.reset_index(drop=True)], axis=1)


def layer_losses(runs: Sequence[ReadRun]) -> pd.DataFrame:
    """Each layer's loss and metric: mean and standard deviation over the seeds of each group."""
    keys = [*_GROUP, "split", "perturbation", "gamma", "layer"]
    return (
        _over_groups([(run, run.layers) for run in runs])
        .groupby(keys, as_index=False)
        .agg(
            loss=("loss", "mean"),
            loss_std=("loss", "std"),
            metric=("metric", "mean"),
            metric_std=("metric", "std"),
            seeds=("seed", "nunique"),
        )
    )


def ratio_bins(runs: Sequence[ReadRun]) -> pd.DataFrame:
    """The histogram of per-example layer ratios: mean shares over the seeds of each group."""
    keys = [*_GROUP, "perturbation", "gamma", "left", "right"]
    return (
        _over_groups([(run, run.ratio_bins) for run in runs])
        .groupby(keys, as_index=False)
        .agg(share=("share", "mean"), cumulative=("cumulative", "mean"), seeds=("seed", "nunique"))
    )


def summary(runs: Sequence[ReadRun], curve: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row for each group and perturbation; a group without a curve keeps its verdicts.

    `curve` saves the time for `curves` where that is there already.
    """
    curve = curves(runs) if curve is None else curve
    rows: list[dict[str, Any]] = []
    for group in dict.fromkeys(run.group for run in runs):
        members = [run for run in runs if run.group == group]
        mine = curve[(curve[_GROUP] == list(group)).all(axis=1)]
        kinds = sorted(mine["perturbation"].unique()) or [""]
        rows += [_summary_row(members, kind, mine[mine["perturbation"] == kind]) for kind in kinds]
    table = pd.DataFrame(rows)
    several = table.groupby(["recipe", "objective"])["variant"].transform("nunique") > 1
    table["label"] = table["objective"].where(~several, table["objective"] + " " + table["variant"])
    return table


def _summary_row(members: list[ReadRun], kind: str, curve: pd.DataFrame) -> dict[str, Any]:
    first = members[0]
    gamma_train = first.info.gamma_train
    inside, outside = (curve[curve["place"] == name] for name in ("ID", "OOD"))
    evaluated = not curve.empty
    return {
        "recipe": first.recipe,
        "objective": first.objective,
        "variant": first.info.variant,
        "seeds": len(members),
        "evaluated": int(curve["seeds"].max()) if evaluated else 0,
        "noise_seeds": int(curve["noise_seeds"].min()) if evaluated else 0,
        "feasible": sum(run.info.feasible for run in members),
        "monotone": sum(run.info.monotone for run in members),
        "metric": first.metric,
        "higher_is_better": first.info.metric.higher_is_better,
        "perturbation": kind,
        "gamma_train": gamma_train,
        "levels": len(curve),
        "range": f"{scale_of(kind).symbol} {curve['gamma'].min():g} to {curve['gamma'].max():g}" if evaluated else "",
        # A level at which a model has no number must not make its mean better.
        "id_mean": inside["mean"].mean(skipna=False),
        "ood_mean": outside["mean"].mean(skipna=False),
        "grid_mean": curve["mean"].mean(skipna=False),
        "auc": area_under_curve(curve["gamma"].tolist(), curve["mean"].tolist()) if evaluated else np.nan,
        "validation_loss": float(np.mean([run.info.best.validation_loss for run in members])),
    }
