"""The tables of a report: curves, layer losses, ratios and the summary, each with its number of
seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from cudt.evaluation.curves import area_under_curve, input_metric, metric_and_ends
from cudt.noise import distribution, scale_of
from cudt.report.collect import ReadRun
from cudt.report.comparable import by_group
from cudt.report.names import labels

_GROUP = ["recipe", "objective", "variant"]


def deviation(values: Sequence[float]) -> float:
    """The standard deviation over seeds, as in every table: with n − 1."""
    return float(np.std(np.asarray(values, dtype=float), ddof=1))


def _per_run(runs: Sequence[ReadRun]) -> pd.DataFrame:
    """The metric of each run at each level with its interval, averaged over noise seeds;
    vectorised, for many runs.
    """
    names = ["value", "low", "high", "input"]
    levels = ["run", "perturbation", "gamma"]
    rows = pd.concat(
        [run.ood.assign(run=index) for index, run in enumerate(runs)], ignore_index=True
    )
    spelled = {
        (index, spelling): name
        for index, run in enumerate(runs)
        for spelling, name in zip(
            [*metric_and_ends(run.metric), input_metric(run.metric)], names, strict=True
        )
    }
    rows["name"] = [spelled.get(key) for key in zip(rows["run"], rows["metric"], strict=True)]
    rows["noise_seeds"] = rows.groupby(levels)["seed"].transform("nunique")
    # A pivot table would drop nan, and with it the level.
    grouped = rows.groupby([*levels, "n", "noise_seeds", "name"])["value"]
    means = grouped.mean().where(grouped.count() == grouped.size())
    table = means.unstack("name").reindex(columns=names).reset_index()
    facts = [(*run.group, run.seed, run.metric, run.gamma_train) for run in runs]
    of_runs = pd.DataFrame(facts, columns=[*_GROUP, "seed", "metric", "gamma_train"]).iloc[
        table.pop("run")
    ]
    return pd.concat([table, of_runs.reset_index(drop=True)], axis=1)


def curves(runs: Sequence[ReadRun]) -> pd.DataFrame:
    """The metric against the level: mean and standard deviation over the seeds of each group.

    `low` and `high` are the ends of one seed's 95 % interval over test examples or clips, averaged
    over the seeds; `input` is the metric of the noisy input itself, for denoising. Only levels that
    every evaluated seed of a group has: a mean must not change its seeds along a curve. The column
    `place` says whether a level is in distribution (ID) or not (OOD).
    """
    keys = [*_GROUP, "metric", "perturbation", "gamma", "place"]
    table = _per_run(runs)
    levels = zip(table["perturbation"], table["gamma"], table["gamma_train"], strict=True)
    table["place"] = [distribution(*level) for level in levels]
    evaluated = table.groupby([*_GROUP, "perturbation"])["seed"].transform("nunique")
    return (
        table[table.groupby(keys)["seed"].transform("nunique") == evaluated]
        .groupby(keys, as_index=False)
        .agg(
            mean=("value", _mean),
            std=("value", "std"),
            low=("low", "mean"),
            high=("high", "mean"),
            input=("input", "mean"),
            seeds=("seed", "nunique"),
            noise_seeds=("noise_seeds", "min"),
            n=("n", "first"),
        )
    )


def _mean(values: pd.Series[float]) -> float:
    return float(values.mean(skipna=False))


def uneven_grids(runs: Sequence[ReadRun]) -> list[str]:
    """A warning for each group whose seeds were evaluated at different levels; `curves` leaves some
    of them out.
    """
    lines = []
    named = labels(runs)
    for key, rows in _per_run(runs).groupby([*_GROUP, "perturbation"]):
        recipe, objective, variant, kind = map(str, key)
        seeds = rows.groupby("gamma")["seed"].nunique()
        missing = seeds.index[seeds < rows["seed"].nunique()]
        if len(missing):
            level = f"{scale_of(kind).symbol} = " + ", ".join(f"{gamma:g}" for gamma in missing)
            lines.append(
                f"{recipe} {named[recipe, objective, variant]}, {kind}: not every seed was "
                f"evaluated at {level}"
            )
    return lines


def _over_groups(tables: Sequence[tuple[ReadRun, pd.DataFrame]]) -> pd.DataFrame:
    """The rows of one table of all runs, each with its group and seed."""
    of_runs = pd.DataFrame([(*run.group, run.seed) for run, _ in tables], columns=[*_GROUP, "seed"])
    repeated = of_runs.iloc[np.repeat(np.arange(len(tables)), [len(table) for _, table in tables])]
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
    """The histogram of per-example layer ratios: shares averaged over the seeds of each group."""
    keys = [*_GROUP, "perturbation", "gamma", "left", "right"]
    return (
        _over_groups([(run, run.ratio_bins) for run in runs])
        .groupby(keys, as_index=False)
        .agg(share=("share", "mean"), cumulative=("cumulative", "mean"), seeds=("seed", "nunique"))
    )


def summary(runs: Sequence[ReadRun], curve: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row for each group and kind of noise; a group that was not evaluated has one row without a
    curve.

    Pass `curve` if `curves` has been computed already.
    """
    curve = curves(runs) if curve is None else curve
    rows: list[dict[str, Any]] = []
    for group, members in by_group(runs).items():
        mine = curve[(curve[_GROUP] == list(group)).all(axis=1)]
        kinds = sorted(mine["perturbation"].unique()) or [""]
        rows += [_summary_row(members, kind, mine[mine["perturbation"] == kind]) for kind in kinds]
    table = pd.DataFrame(rows)
    named = labels(runs)
    table["label"] = [named[key] for key in table[_GROUP].itertuples(index=False, name=None)]
    return table


def _summary_row(members: list[ReadRun], kind: str, curve: pd.DataFrame) -> dict[str, Any]:
    first = members[0]
    inside, outside = (curve[curve["place"] == name] for name in ("ID", "OOD"))
    evaluated = not curve.empty
    return {
        "recipe": first.recipe,
        "objective": first.objective,
        "variant": first.variant,
        "seeds": len(members),
        "evaluated": int(curve["seeds"].max()) if evaluated else 0,
        "noise_seeds": int(curve["noise_seeds"].min()) if evaluated else 0,
        "feasible": sum(run.info.feasible for run in members),
        "monotone": sum(run.info.monotone for run in members),
        "metric": first.metric,
        "higher_is_better": first.higher_is_better,
        "perturbation": kind,
        "gamma_train": first.gamma_train,
        "levels": len(curve),
        "range": f"{scale_of(kind).symbol} {curve['gamma'].min():g} to {curve['gamma'].max():g}"
        if evaluated
        else "",
        # Without skipna, a level that is nan would make the mean better.
        "id_mean": inside["mean"].mean(skipna=False),
        "ood_mean": outside["mean"].mean(skipna=False),
        "grid_mean": curve["mean"].mean(skipna=False),
        "input_mean": curve["input"].mean(skipna=False),
        "auc": area_under_curve(curve["gamma"].tolist(), curve["mean"].tolist())
        if evaluated
        else np.nan,
        "validation_loss": float(np.mean([run.validation_loss for run in members])),
    }
