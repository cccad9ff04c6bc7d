"""Sweeps below the folders of a report: what they say about their runs, and what they searched."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from cudt.report.charts import Drawing, side_by_side, style
from cudt.report.frames import Frames
from cudt.utils.errors import UserError
from cudt.utils.files import files_below

#: Columns of best.csv on the page.
_SHOWN = [
    "setting",
    "arm",
    "score",
    "feasible",
    "runs",
    "failed",
    "pruned",
    "spent_updates",
    "spent_seconds",
]


@dataclass(frozen=True)
class Sweep:
    """A sweep with its tables in memory."""

    path: Path
    info: dict[str, Any]
    trials: pd.DataFrame
    best: pd.DataFrame

    @property
    def name(self) -> str:
        """Recipe and sweep."""
        return f"{self.info['recipe']}, {self.info['name']}"

    @property
    def finished(self) -> pd.DataFrame:
        """The trials with a score."""
        return self.trials[self.trials["state"] == "finished"]

    @property
    def runs(self) -> set[str]:
        """Its finished runs, as `recipe/folder`."""
        return {*self.finished["run"].dropna()}

    @property
    def keys(self) -> list[str]:
        """The settings that differ between finished trials."""
        return [key for key in self.info["keys"] if self.finished[key].nunique() > 1]

    @property
    def is_search(self) -> bool:
        """Whether settings were chosen among; a sampler of seeds repeats what is compared."""
        return any(arm["sampler"] != "seeds" for arm in self.info["arms"].values())

    def best_rows(self) -> list[dict[str, Any]]:
        """The best trial of each arm, as the page shows it."""
        columns = [name for name in (*_SHOWN, *self.keys, "run") if name in self.best]
        table = self.best[[*dict.fromkeys(columns)]]
        return table.astype(object).where(table.notna(), "").to_dict("records")


def read(folders: Sequence[Path]) -> tuple[list[Sweep], list[str]]:
    """Every sweep with a finished trial; and a warning for each without one or damaged."""
    found: dict[Path, Sweep] = {}
    warnings = []
    for path in sorted(
        file.parent for folder in folders for file in files_below(folder, ["sweep.json"])
    ):
        try:
            sweep = _read(path)
        except (UserError, OSError, ValueError, KeyError) as error:
            warnings.append(f"{path}: damaged ({error})")
            continue
        if sweep.finished.empty:
            warnings.append(f"{path}: skipped: the sweep has no finished run yet")
        else:
            found.setdefault(path.resolve(), sweep)
    return [*found.values()], warnings


def _read(folder: Path) -> Sweep:
    info = json.loads((folder / "sweep.json").read_bytes())
    words = dict.fromkeys(["setting", "arm", "run", "reason", *info["keys"]], str)
    # A setting may be the word `null`.
    trials, best = (
        pd.read_csv(folder / name, dtype=words, keep_default_na=False, na_values=[""])
        for name in ("trials_wide.csv", "best.csv")
    )
    for key in info["keys"]:
        numbers = pd.to_numeric(trials[key], errors="coerce")
        if numbers.notna().equals(trials[key].notna()):
            trials[key], best[key] = numbers, pd.to_numeric(best[key])
    _ = (
        info["recipe"],
        info["name"],
        info["measure"],
        info["arms"],
        info["direction"],
        trials["score"],
    )
    # A score of a run that is NaN at a noise level is infinite, and no chart can show it.
    for table in (trials, best):
        table["score"] = table["score"].replace([math.inf, -math.inf], math.nan)
    return Sweep(folder, info, trials.fillna({"setting": ""}), best.fillna({"setting": ""}))


def mark(frames: Frames, sweeps: Sequence[Sweep]) -> None:
    """Add to `runs` what sweeps say of them.

    measure       what a sweep scored the run by; empty where two sweeps differ
    is_repeated   it is one of several seeds of settings that were not chosen
    is_ablation   it is left out of comparisons: it belongs to sweeps of one objective that repeat
                  nothing, or to a search that a later sweep repeats on seeds of its own
    """
    runs = frames.runs
    names = pd.Series(
        [f"{path.parent.name}/{path.name}" for path in runs["path"]], index=runs.index
    )
    known = dict(zip(names, runs.index, strict=True))
    measures: dict[str, set[str]] = {}
    ablated, compared, searched, repeated = set[str](), set[str](), set[str](), set[str]()
    for sweep in sweeps:
        mine = {name for name in sweep.runs if name in known}
        for name in mine:
            measures.setdefault(name, set()).add(sweep.info["measure"])
        objectives = {frames.row(known[name]).objective for name in mine}
        (compared if len(objectives) > 1 else ablated).update(mine)
        (searched if sweep.is_search else repeated).update(mine)
    ablated -= compared
    places = [*zip(runs["recipe"], runs["cell"], runs["objective"], strict=True)]
    place = dict(zip(names, places, strict=True))
    anew = {place[name] for name in repeated - ablated}
    replaced = {name for name in searched - repeated if place[name] in anew}
    runs["measure"] = [
        "".join(found) if len(found := measures.get(n, set())) == 1 else "" for n in names
    ]
    runs["is_repeated"] = names.isin([*repeated])
    runs["is_ablation"] = names.isin([*(ablated | replaced)])


def slices(sweep: Sweep) -> Iterator[Drawing]:
    """The score against each searched setting; the best of each arm has a ring."""
    if not sweep.keys:
        return
    measure = {"grid": "mean metric over γ", "metric": "metric", "loss": "loss"}[
        sweep.info["measure"]
    ]
    arms = [*sweep.info["arms"]]
    colors = alt.Scale(domain=arms, range=[style(arm, arms)[0] for arm in arms])
    panels = []
    for key in sweep.keys:
        values = sweep.finished[["arm", "score", key]].dropna().rename(columns={key: "value"})
        best = sweep.best[["arm", "score", key]].dropna().rename(columns={key: "value"})
        is_number = pd.api.types.is_numeric_dtype(values["value"])
        is_log = is_number and values["value"].min() > 0 and key in sweep.info["log_keys"]
        scale = alt.Scale(type="log") if is_log else alt.Scale(zero=False)
        x = alt.X("value:Q", title=key, scale=scale) if is_number else alt.X("value:N", title=key)
        y = alt.Y("score:Q", title=f"validation {measure}", scale=alt.Scale(zero=False))
        color = alt.Color("arm:N", title=None, scale=colors, legend=alt.Legend(orient="bottom"))
        dots = alt.Chart(values).mark_point(filled=True, opacity=0.6).encode(x, y, color=color)
        rings = alt.Chart(best).mark_point(size=160, strokeWidth=2).encode(x, y, color=color)
        panels.append((dots + rings).properties(width=230, height=180))
    caption = f"{sweep.name}: each setting against the score ({sweep.info['direction']})"
    yield Drawing(side_by_side(panels), caption)
