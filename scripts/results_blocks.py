"""The kinds of tables in docs/results.md, each written from results/tables/ (results_page.py lists them)."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from results_groups import GROUP, against, groups_of, plain, read, side, with_beside

from cudt.evaluation import intervals
from cudt.noise.base import scale_of, training_level

_ROOT = Path(__file__).parent.parent
_OTHERS = ("erm", "supervised")


def compare(tables: Path, wanted: dict[str, str]) -> str:
    """The groups of runs with their means, and their paired differences to ERM and supervised."""
    groups = groups_of(tables, wanted)
    known = with_beside(tables, wanted, groups)
    paired = read(tables, "paired", {**wanted, "quantity": "ood_mean"})
    decided = read(tables, "decision", wanted) if (tables / "decision.csv").is_file() else pd.DataFrame()
    rows = []
    for _, group in groups.iterrows():
        row = {
            "runs": group["label"],
            "seeds": f"{group['evaluated']:g}",
            **({} if pd.isna(group["id_mean"]) else {"ID": f"{group['id_mean']:.3f}"}),
            "OOD": f"{group['ood_mean']:.3f}",
            **({f"AUC, {group['range']}": f"{group['auc']:.3f}"} if group["metric"] == "accuracy" else {}),
            **{f"OOD − {other}": _difference(against(paired, group, other, known)) for other in _OTHERS},
        }
        if len(decided):
            same = decided[(decided[GROUP] == group[GROUP]).all(axis=1)]
            row["decides at layer"] = ", ".join(f"{layer:g}" for layer in same.sort_values("seed")["decision_layer"])
            row["layers that lower the loss"] = f"{same['descending_share'].mean():.0%}" if len(same) else ""
        rows.append(row)
    return _markdown(rows)


def summary(tables: Path, wanted: dict[str, str]) -> str:
    """The groups of the paper's form in all recipes under Gaussian noise; of several settings, the named one."""
    wanted = {"perturbation": "gaussian", **wanted}
    groups = groups_of(tables, wanted)
    paired = read(tables, "paired", {**wanted, "quantity": "ood_mean"})
    rows = []
    for _, group in groups[groups["objective"] == "constrained"].iterrows():
        is_paper = group["label"].split(",")[0] in ("full", "constrained")
        if not is_paper or not group["setting"].endswith(wanted["setting"] if group["setting"] else ""):
            continue
        by_other = {other: against(paired, group, other, groups) for other in _OTHERS}
        row = {"experiment": group["recipe"], "constraints": group["label"]}
        row |= {"seeds": f"{group['evaluated']:g}", "metric": group["metric"], "OOD": f"{group['ood_mean']:.3f}"}
        rows.append(row | {f"minus {other}": _difference(found) for other, found in by_other.items()})
    return _markdown(rows)


def _difference(rows: pd.DataFrame) -> str:
    """A difference with its interval, bold if it excludes 0; empty if there is none."""
    if rows.empty:
        return ""
    row = rows.iloc[0]
    text = f"{row['difference']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})"
    return f"**{text}**" if row["low"] > 0 or row["high"] < 0 else text


def other(tables: Path, wanted: dict[str, str]) -> str:
    """The mean metric on test data of other tasks, with the differences to ERM and supervised of the same setting."""
    found, groups = read(tables, "other-data", wanted), groups_of(tables, wanted)
    rows = []
    for data, there in found.groupby("data"):
        for _, group in groups.iterrows():
            mean = _mean_on(there, group["objective"], group["variant"])
            apart = {f"minus {one}": _difference(against(there, group, one, groups)) for one in _OTHERS}
            rows.append({"tested on": str(data), "runs": group["label"], "mean": mean, **apart})
    return _markdown(rows)


def _mean_on(found: pd.DataFrame, objective: str, variant: str) -> str:
    """The mean of a group, which is on either side of a difference."""
    sides = [("objective", "variant", "mean"), ("against", "against_variant", "against_mean")]
    means = [found[(found[a] == objective) & (found[b] == variant)][value] for a, b, value in sides]
    known = pd.concat(means)
    return f"{known.iloc[0]:.3f}" if len(known) else ""


def bias(tables: Path, wanted: dict[str, str]) -> str:
    """Accuracy and unbiased accuracy above γ_train, the bias at some levels, and paired differences over seeds."""
    found = read(tables, "class_bias", wanted)
    if found.empty:
        return _markdown([])
    groups = groups_of(tables, wanted)
    groups = groups[groups["variant"].isin(found["variant"])]
    ood = found[found["distribution"] == "OOD"]
    means = ood.groupby(["variant", "seed"])[["accuracy", "unbiased"]].mean()
    rows = []
    for _, group in groups.iterrows():
        mine, top = means.loc[group["variant"]], found[found["variant"] == group["variant"]]
        row = {"runs": group["label"], "accuracy OOD": f"{mine['accuracy'].mean():.3f}"}
        row["unbiased accuracy OOD"] = f"{mine['unbiased'].mean():.3f}"
        row["ID − OOD"], row["ID − OOD, unbiased"] = (f"{_drop(top, name):.3f}" for name in ("accuracy", "unbiased"))
        beside = groups[groups["setting"] == group["setting"]]
        for one in _OTHERS if group["objective"] != "erm" else ():
            base = beside[beside["objective"] == one]["variant"]
            if len(base) and one != group["objective"]:
                row[f"unbiased − {one}"] = _paired_over_seeds(mine, means.loc[base.iloc[0]])
        for gamma, level in top.groupby("gamma"):
            row[f"bias at {gamma:g}"] = f"{level['bias'].mean():+.2f}"
        rows.append(row)
    return _markdown(rows)


def _drop(found: pd.DataFrame, name: str) -> float:
    """The mean of a number up to γ_train minus that above."""
    means = found.groupby("distribution")[name].mean()
    return float(means.get("ID", np.nan) - means["OOD"])


def _paired_over_seeds(ours: pd.DataFrame, theirs: pd.DataFrame) -> str:
    """The mean difference in unbiased accuracy with Student's 95 % interval over the seeds that both have.

    The interval is over seeds alone: recalls do not say which examples of a class two runs both recognise.
    """
    differences = (ours["unbiased"] - theirs["unbiased"]).dropna()
    mean, n = differences.mean(), len(differences)
    if n < 2:
        return ""
    (reach,) = intervals.student([(np.array([differences.var(ddof=1) / n]), n - 1)])
    return _difference(pd.DataFrame([{"difference": mean, "low": mean - reach, "high": mean + reach}]))


def layers(tables: Path, wanted: dict[str, str]) -> str:
    """At some levels the share of layers that lower the loss, the layer with the lowest, and f_L − min f_k."""
    found = read(tables, "descent", wanted)
    if found.empty:
        return _markdown([])
    rows = []
    for _, group in groups_of(tables, wanted).iterrows():
        mine = found[found["variant"] == plain(group["variant"])].drop_duplicates(["run", "gamma"])
        negative = mine["negative"].mean()
        row = {"runs": group["label"], "updates with a negative weight": "" if pd.isna(negative) else f"{negative:.0%}"}
        for gamma in map(float, wanted["at"].split(",")):
            level = mine[mine["gamma"] == gamma]
            if len(level):
                first, last = level["best_layer"].min(), level["best_layer"].max()
                row[f"layers that lower the loss, γ = {gamma:g}"] = f"{level['falling'].mean():.0%}"
                row[f"best layer, γ = {gamma:g}"] = f"{first:g}" if first == last else f"{first:g} to {last:g}"
                row[f"f_L − min f_k, γ = {gamma:g}"] = f"{level['gap'].mean():.3f}"
        rows.append(row)
    return _markdown(rows)


def exits(tables: Path, wanted: dict[str, str]) -> str:
    """Early exit by one rule at each level: the means over seeds of accuracy, its change and the layers used."""
    found = read(tables, "exits", wanted)
    rows = []
    for _, group in groups_of(tables, wanted).iterrows():
        mine = found[found["variant"] == plain(group["variant"])]
        row = {"runs": group["label"]}
        for gamma, level in mine.groupby("gamma"):
            change = 100 * (level["accuracy"] - level["full_accuracy"]).mean()
            row[f"accuracy, γ = {gamma:g}"] = f"{level['accuracy'].mean():.3f} ({change:+.1f})"
            row[f"layers, γ = {gamma:g}"] = f"{level['mean_depth'].mean():.1f}"
        rows.append(row)
    return _markdown(rows)


def privacy(tables: Path, wanted: dict[str, str]) -> str:
    """At each level with noise ε of one token, as a range over all runs, and the mean metric of each group."""
    found = read(tables, "privacy", wanted)
    if found.empty:
        return _markdown([])
    groups = groups_of(tables, wanted)
    rows = []
    for gamma, level in found[(found["unit"] == "token") & (found["gamma"] > 0)].groupby("gamma"):
        ends = f"{level['epsilon'].min():,.0f}", f"{level['epsilon'].max():,.0f}"
        row = {"γ": f"{gamma:g}", "ε of a token": " to ".join(dict.fromkeys(ends))}
        for _, group in groups.iterrows():
            row[group["label"]] = f"{level[level['variant'] == plain(group['variant'])]['value'].mean():.3f}"
        rows.append(row)
    return _markdown(rows)


def levels(tables: Path, wanted: dict[str, str]) -> str:
    """The mean metric over seeds at each noise level."""
    curves = read(tables, "curves", wanted)
    rows = []
    for _, group in groups_of(tables, wanted).iterrows():
        mine = curves[(curves[GROUP] == group[GROUP]).all(axis=1)].sort_values("gamma")
        mine = mine[mine["perturbation"] == group["perturbation"]]
        symbol = str(group["range"]).split()[0]
        means = {f"{symbol} = {row['gamma']:g}": f"{row['mean']:.3f}" for _, row in mine.iterrows()}
        rows.append({"runs": group["label"]} | means)
    return _markdown(rows)


def apart(tables: Path, wanted: dict[str, str]) -> str:
    """At each noise level, the paired differences of each group to ERM and to supervised."""
    groups = groups_of(tables, wanted)
    paired = read(tables, "paired", {**wanted, "quantity": "metric"})
    rows: dict[float, dict[str, str]] = {}
    for _, group in groups.iterrows():
        for other in _OTHERS:
            found = against(paired, group, other, groups)
            for gamma, level in found.groupby("gamma"):
                rows.setdefault(float(gamma), {})[f"{group['label']} − {other}"] = _difference(level)
    symbol = str(groups["range"].iloc[0]).split()[0] if len(groups) else ""
    return _markdown([{symbol: f"{gamma:g}", **row} for gamma, row in sorted(rows.items())])


def versus(tables: Path, wanted: dict[str, str]) -> str:
    """At each noise level two groups with different settings, and their paired difference; then above our γ_train."""
    ours, theirs = (side(tables, wanted, wanted[name]) for name in ("ours", "theirs"))
    found = read(tables, "versus", {"quantity": "metric,ood_mean"})
    if ours is None or theirs is None or found.empty:
        return _markdown([])
    is_pair = (found["variant"] == ours.variant) & (found["against_variant"] == theirs.variant)
    pair = found[is_pair & (found["recipe"] == ours.recipe) & (found["perturbation"] == ours.perturbation)]
    symbol = scale_of(ours.perturbation).symbol
    trained = training_level(ours.perturbation, float(wanted["ours"].partition("@")[2]))
    rows = []
    for gamma, level in pair.groupby("gamma", dropna=False):
        levels = [float(gamma)] if pd.notna(gamma) else [one for one in ours.means if one > trained]
        means = {one.label: f"{np.mean([one.means[level] for level in levels]):.3f}" for one in (theirs, ours)}
        name = f"{gamma:g}" if pd.notna(gamma) else f"mean above {trained:g}"
        rows.append({symbol: name, **means, "difference": _difference(level)})
    return _markdown(rows)


def weights(tables: Path, wanted: dict[str, str]) -> str:
    """The epochs that were chosen, the means with the best and with the last weights, and paired differences."""
    means, paired = read(tables, "weights", wanted), read(tables, "weights_paired", {"quantity": "ood_mean"})
    if means.empty:
        return _markdown([])
    groups, rows = groups_of(tables, wanted), []
    for _, group in groups.iterrows():
        mine = means[means["variant"] == plain(group["variant"])].sort_values("seed")
        by_weights = {name: mine[mine["weights"] == name] for name in ("best", "last")}
        row = {"runs": group["label"], "best epoch": ", ".join(f"{one:g}" for one in by_weights["best"]["epoch"])}
        for name in ("ID", "OOD"):
            row |= {f"{name}, {weights}": f"{runs[name].mean():.3f}" for weights, runs in by_weights.items()}
        same = paired[paired["variant"] == plain(group["variant"])]
        row["OOD, last − best"] = _difference(same[same["against_variant"] == plain(group["variant"])])
        for other in _OTHERS if group["objective"] != "erm" else ():
            beside = groups[(groups["objective"] == other) & (groups["setting"] == group["setting"])]["variant"]
            found = same[same["against_variant"].isin(beside.map(plain)) & (same["against"] != same["objective"])]
            row[f"OOD − {other}, last"] = _difference(found)
        rows.append(row)
    return _markdown(rows)


def claims(tables: Path, wanted: dict[str, str]) -> str:
    """Each claim of the paper once: its figure, the verdict against ERM and against supervised, and the settings."""
    found = read(tables, "claims", wanted)
    rows = []
    for name, mine in found.groupby("claim", sort=False):
        verdicts = mine.fillna({"against": ""}).groupby("against", sort=False)
        against = {str(other): part for other, part in verdicts}
        main = against.get("erm", against.get("", mine))
        supervised = against.get("supervised")
        rows.append(
            {
                "claim": name,
                "in words": mine["statement"].iloc[0],
                "the paper": mine["paper"].iloc[0],
                "verdict": main["verdict"].iloc[0],
                "settings for, against, unclear": _outcomes(main),
                "verdict against supervised": "" if supervised is None else supervised["verdict"].iloc[0],
            }
        )
    return _markdown(rows)


def _outcomes(rows: pd.DataFrame) -> str:
    return ", ".join(str((rows["outcome"] == outcome).sum()) for outcome in ("for", "against", "unclear"))


def search(tables: Path, wanted: dict[str, str]) -> str:
    """The trials of a search in order, the best of each arm in bold."""
    trials = read(tables, "trials", wanted)
    best = trials.groupby("arm")["score"].transform("max")
    scores = [
        f"**{score:.4f}**" if score == top else f"{score:.4f}" for score, top in zip(trials["score"], best, strict=True)
    ]
    shown = zip(trials["arm"], trials["settings"], scores, strict=True)
    return _markdown([{"arm": arm, "settings": settings, "score": score} for arm, settings, score in shown])


def report(tables: Path, wanted: dict[str, str]) -> str:
    """A table of the report without its title, its notes wrapped."""
    path = tables / f"{wanted['table']}.md"
    if not path.is_file():
        return _markdown([])
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith("#")]
    wrapped = [line if line.startswith("|") else textwrap.fill(line, 100, break_on_hyphens=False) for line in kept]
    return "\n".join(wrapped).strip()


def paper(tables: Path, wanted: dict[str, str]) -> str:
    """Constrained minus unconstrained in the paper's table of accuracy AUC: mean and range over γ_train and depths."""
    auc = pd.read_csv(_ROOT / "data" / "paper" / "accuracy_auc.csv").fillna({"layers": 0})
    keys = ["model", "dataset", "layers", "gamma_train"]
    wide = auc.pivot(index=keys, columns="objective", values="value").reset_index()
    wide["gain"] = wide["constrained"] - wide["erm"]
    rows = []
    for model, mine in wide.groupby("model", sort=False):
        row = {"mean difference in accuracy AUC (range)": str(model)}
        for dataset, gains in mine.groupby("dataset", sort=False)["gain"]:
            row[str(dataset)] = f"{gains.mean():+.3f} ({gains.min():+.3f} to {gains.max():+.3f})"
        rows.append(row)
    return _markdown(rows)


def _markdown(rows: Sequence[dict[str, str]]) -> str:
    if not rows:
        return "*No runs yet.*"
    columns = [
        name for name in dict.fromkeys(name for row in rows for name in row) if any(row.get(name) for row in rows)
    ]
    lines = [columns, ["---"] * len(columns), *([row.get(name, "") for name in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


KINDS: dict[str, Callable[[Path, dict[str, str]], str]] = {
    "compare": compare,
    "levels": levels,
    "apart": apart,
    "versus": versus,
    "weights": weights,
    "other": other,
    "bias": bias,
    "layers": layers,
    "exits": exits,
    "privacy": privacy,
    "summary": summary,
    "claims": claims,
    "search": search,
    "report": report,
    "paper": paper,
}
