"""The tables that are not about the paper: means over the seeds of each group as CSV, the
comparisons, and tables of texts as Markdown, LaTeX and HTML.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from cudt.config.levels import scale_of
from cudt.report.compare import BASELINE, CONSTRAINED, SIDES
from cudt.report.frames import GROUP, Frames
from cudt.report.paired import Comparison, over_levels
from cudt.utils.text import short_number

_BOLD = re.compile(r"\*\*(.+?)\*\*")
#: What LaTeX's default fonts lack.
_LATEX = str.maketrans({
    **{"γ": r"$\gamma$", "α": r"$\alpha$", "β": r"$\beta$", "σ": r"$\sigma$", "η": r"$\eta$"},
    **{"₂": "$_2$", "₀": "$_0$", "−": "$-$", "†": r"$^\dagger$", "↑": r"$\uparrow$"},
    **{"↓": r"$\downarrow$", "–": "--", "<": "$<$", ">": "$>$"},
})  # fmt: skip


@dataclass(frozen=True)
class TextTable:
    """A table of texts for people; `**bold**` is bold in every format."""

    stem: str
    title: str
    frame: pd.DataFrame
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """GitHub's Markdown."""
        names = [*self.frame.columns]
        rows = [names, ["---"] * len(names), *self.frame.to_numpy().tolist()]
        lines = ["| " + " | ".join(text.replace("|", r"\|") for text in row) + " |" for row in rows]
        notes = [f"\n{note}" for note in self.notes]
        return "\n".join([f"## {self.title}\n", *lines, *notes]) + "\n"

    def latex(self) -> str:
        """A LaTeX float, for a document that loads booktabs."""
        style = self.frame.style.hide(axis="index").format(escape="latex")
        style = style.format_index(escape="latex", axis=1)
        text = style.to_latex(caption=self.title, hrules=True, position_float="centering")
        text = _BOLD.sub(r"\\textbf{\1}", text)
        notes = "".join(rf"\par\smallskip{{\footnotesize {note}}}" + "\n" for note in self.notes)
        end = r"\end{table}"
        notes = notes.replace("%", r"\%").replace("_", r"\_")
        return text.replace(end, notes + end).translate(_LATEX)

    def html(self) -> str:
        """An HTML table, without title and notes."""
        return _BOLD.sub(r"<b>\1</b>", self.frame.to_html(index=False, border=0))


def curves(frames: Frames) -> pd.DataFrame:
    """The metric against the level: mean and standard deviation over the seeds of each group.

    `low` and `high` are the ends of one seed's 95 % interval over test examples or clips, averaged
    over the seeds; `input` is the metric of the noisy input itself, for denoising. Only levels that
    every evaluated seed of a group has: a mean must not change its seeds along a curve.
    """
    line = [*GROUP, "metric", "perturbation"]
    keys = [*line, "gamma", "place"]
    points = frames.points.join(frames.runs[[*GROUP, "metric", "seed"]], on="run")
    evaluated = points.groupby(line)["seed"].transform("nunique")
    grouped = points[points.groupby(keys)["seed"].transform("nunique") == evaluated].groupby(keys)
    table = grouped.agg(
        mean=("value", "mean"),
        std=("value", "std"),
        low=("low", "mean"),
        high=("high", "mean"),
        input=("input", "mean"),
        seeds=("seed", "nunique"),
        noise_seeds=("noise_seeds", "min"),
        n=("n", "first"),
    )
    # A level that is NaN for one seed has no mean: without it, the others would look better.
    table["mean"] = table["mean"].where(grouped["value"].count() == grouped.size())
    return table.reset_index()


def layer_losses(frames: Frames) -> pd.DataFrame:
    """Each layer's loss and metric: mean and standard deviation over the seeds of each group."""
    table = frames.layers.join(frames.runs[[*GROUP, "seed"]], on="run")
    keys = [*GROUP, "split", "perturbation", "gamma", "layer"]
    return table.groupby(keys, as_index=False).agg(
        loss=("loss", "mean"),
        loss_std=("loss", "std"),
        metric=("metric", "mean"),
        metric_std=("metric", "std"),
        seeds=("seed", "nunique"),
    )


def ratio_bins(frames: Frames) -> pd.DataFrame:
    """The histogram of per-example layer ratios: shares averaged over the seeds of each group."""
    evaluated = frames.points[["run", "perturbation"]].drop_duplicates()
    found = [frames.bins(*one) for one in evaluated.itertuples(index=False, name=None)]
    if not found:
        return pd.DataFrame()
    table = pd.concat(found).join(frames.runs[[*GROUP, "seed"]], on="run")
    keys = [*GROUP, "perturbation", "gamma", "left", "right"]
    return table.groupby(keys, as_index=False).agg(
        share=("share", "mean"), cumulative=("cumulative", "mean"), seeds=("seed", "nunique")
    )


def summary(frames: Frames, curve: pd.DataFrame) -> pd.DataFrame:
    """table.csv: a row for each group and kind of noise, one row without a curve if there is none."""
    rows, parts = [], dict(iter(curve.groupby([*GROUP, "perturbation"])))
    for group, members in frames.runs.groupby("group", sort=False):
        for kind in sorted({*members["noises"].explode().dropna()}) or [""]:
            rows.append(_row(members, kind, parts.get((*group, kind), curve.iloc[:0])))
    return pd.DataFrame(rows)


def _row(members: pd.DataFrame, kind: str, curve: pd.DataFrame) -> dict[str, Any]:
    first, is_evaluated = members.iloc[0], not curve.empty
    values = dict(zip(curve["gamma"], curve["mean"], strict=True))
    over = over_levels(values, kind, first["gamma_train"])
    ends = f"{curve['gamma'].min():g} to {curve['gamma'].max():g}"
    return {
        **{name: first[name] for name in GROUP},
        "seeds": len(members),
        "evaluated": int(curve["seeds"].max()) if is_evaluated else 0,
        "noise_seeds": int(curve["noise_seeds"].min()) if is_evaluated else 0,
        "feasible": int(members["feasible"].sum()),
        "monotone": int(members["monotone"].sum()),
        **{name: first[name] for name in ("metric", "higher_is_better")},
        "perturbation": kind,
        "gamma_train": first["gamma_train"],
        "levels": len(curve),
        "range": f"{scale_of(kind).symbol} {ends}" if is_evaluated else "",
        "id_mean": over["id_mean"],
        "ood_mean": over["ood_mean"],
        "grid_mean": over["mean"],
        "input_mean": curve["input"].mean(skipna=False) if is_evaluated else np.nan,
        "auc": over["auc"],
        "validation_loss": float(members["validation_loss"].mean()),
        "label": first["label"],
    }


def comparison_table(runs: pd.DataFrame, comparisons: Sequence[Comparison]) -> TextTable:
    """Constrained next to ERM out of distribution: the page's first table."""
    rows, notes = [], []
    for one in comparisons:
        first = runs.loc[one.members[0]]
        ood, inside = one.numbers["ood_mean"], one.numbers["id_mean"]
        facts = f"L = {first['n_layers']}", f"γ_train = {first['gamma_train']:g}", one.noise
        setting = ", ".join(filter(None, (*facts, first["constraints"])))
        name, infeasible = f"{first['family']}, {setting}", one.sides[CONSTRAINED].infeasible
        if infeasible:
            notes.append(f"†: {name}: {infeasible}.")
        difference = _number(ood["difference"], "+.3g")
        if ood["unit"]:
            ends = f"{ood['low']:+.3g} to {ood['high']:+.3g}"
            difference += f" ({ends}; {ood['n']} {ood['unit']})"
        else:
            notes.append(f"{name}: no interval: {ood['reason']}.")
        bold = {side: "**" if ood["better"] == side else "" for side in SIDES}
        hows = [side.how for side in one.sides.values() if side.runs]
        rows.append({
            "recipe": first["family"] + (" †" if infeasible else ""),
            "setting": setting,
            "metric": f"{first['metric']} {'↑' if first['higher_is_better'] else '↓'}",
            "OOD constr.": bold[CONSTRAINED] + _number(ood[CONSTRAINED]) + bold[CONSTRAINED],
            "OOD unconstr.": bold[BASELINE] + _number(ood[BASELINE]) + bold[BASELINE],
            "OOD difference": difference,
            "ID constr.": _number(inside[CONSTRAINED]),
            "ID unconstr.": _number(inside[BASELINE]),
            "runs": " against ".join(dict.fromkeys(hows)),
        })  # fmt: skip
    reading = (
        "The mean metric over the noise levels above γ_train (OOD) and up to it (ID), on the same "
        "test examples under the same noise; the difference is constrained minus ERM, with its 95 % interval. Bold: "
        "better, where the interval excludes 0 and both sides were selected from equally many runs. An "
        "interval over examples or clips says nothing about other training seeds. †: a constraint is "
        "not kept. The weights of every run, whatever its objective, are those of the epoch with the "
        "lowest validation loss f_L, or the last ones where its recipe says so (training.select)."
    )
    title = "Constrained against unconstrained out of distribution"
    return TextTable("comparisons", title, pd.DataFrame(rows), [reading, *notes])


def _number(value: float, digits: str = ".4g") -> str:
    return "" if np.isnan(value) else f"{value:{digits}}"


def _short(value: float) -> str:
    return "" if np.isnan(value) else short_number(value)


def terminal_table(summary: pd.DataFrame) -> pd.DataFrame:
    """The part of table.csv that fits a terminal, as texts: AUC for metrics to maximise, else the
    mean over all levels.
    """
    is_up, seeds = summary["higher_is_better"], summary["seeds"].astype(str)
    area = np.where(is_up, summary["auc"], summary["grid_mean"])
    numbers = {"ID": summary["id_mean"], "OOD": summary["ood_mean"], "AUC/mean": area}
    return pd.DataFrame({
        **{"recipe": summary["recipe"], "objective": summary["label"]},
        "noise": summary["perturbation"] + " " + summary["range"],
        "feasible": summary["feasible"].astype(str) + " of " + seeds,
        **{name: map(_short, values) for name, values in numbers.items()},
    })  # fmt: skip
