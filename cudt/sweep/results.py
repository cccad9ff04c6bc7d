"""The files in a sweep's folder:

sweep.yaml       the search file; its recipe is base.yaml, the recipe as it was when the sweep began
sweep.json       score, progress, and the command that resumes the sweep (see info.py)
trials.csv       long: setting, arm, trial, name, value
trials_wide.csv  one row per trial
best.csv         the best trial of each arm in each setting, and what the arm spent
best.yaml        the recipe of the best run of all; best/ has one for each arm in each setting
study.db         the Optuna studies
logs/            the output of the workers
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from cudt import __version__
from cudt.sweep.definition import BASE_FILE, Sweep, as_word, setting_name
from cudt.sweep.info import ArmInfo, SweepInfo, write_info
from cudt.sweep.search import Scalar
from cudt.sweep.study import ArmStudy
from cudt.utils.files import file_name, write_text

LONG = ["setting", "arm", "trial", "name", "value"]
#: The columns of a trial besides its settings.
FACTS = [
    "run",
    "seconds",
    "deaths",
    "updates",
    "best_epoch",
    "validation_loss",
    "validation_metric",
    "feasible",
    "monotone",
    "reason",
]


@dataclass(frozen=True)
class Results:
    """A sweep's tables."""

    folder: Path
    trials: pd.DataFrame
    best: pd.DataFrame
    sweep: Sweep
    left: int
    """Cells that are waiting or running."""

    def arm_keys(self, arm: str) -> list[str]:
        """The recipe keys that an arm varies."""
        return _arm_keys(self.sweep, arm)

    @property
    def n_failed(self) -> int:
        return int((self.trials["state"] == "failed").sum())

    @property
    def n_pruned(self) -> int:
        return int((self.trials["state"] == "pruned").sum())

    @property
    def n_finished(self) -> int:
        return int((self.trials["state"] == "finished").sum())


def write_definition(sweep: Sweep, folder: Path) -> None:
    write_text(folder / BASE_FILE, sweep.base_text())
    write_text(folder / "sweep.yaml", sweep.text())


def write(sweep: Sweep, studies: Sequence[ArmStudy], folder: Path, command: str) -> Results:
    """Write every file except the studies themselves; `command` is the one that resumes the
    sweep.
    """
    trials = wide(sweep, studies)
    left = sum(study.left for study in studies)
    prunes = bool(sweep.search.pruning_arms)
    best = best_of_arms(
        trials, sweep.search.score.direction, list(sweep.search.settings), prunes=prunes
    )
    made = Results(folder, trials, best, sweep, left)
    tables = {"trials_wide.csv": trials, "trials.csv": long(trials), "best.csv": made.best}
    for name, table in tables.items():
        write_text(folder / name, table.to_csv(index=False))
    write_info(folder, _info(made, command))
    _write_best(sweep, studies, made)
    return made


def varied(sweep: Sweep) -> list[str]:
    """The keys of recipes that differ between trials, settings first."""
    searched = [key for arm in sweep.search.arms for key in (_arm_keys(sweep, arm))]
    return list(dict.fromkeys([*sweep.search.settings, *searched]))


def _arm_keys(sweep: Sweep, arm: str) -> list[str]:
    chosen = sweep.arm(arm)
    return ["seed"] if chosen.sampler == "seeds" else list(chosen.search)


def wide(sweep: Sweep, studies: Sequence[ArmStudy]) -> pd.DataFrame:
    """One row per trial; settings that an arm does not vary are empty in its rows."""
    rows = []
    for study in studies:
        names = {"setting": setting_name(study.setting), "arm": study.arm}
        for trial in study.trials():
            if not trial.parameters:
                # To be drawn when it starts.
                continue
            state = {"trial": trial.number, "state": trial.state, "score": trial.score}
            facts = {name: trial.facts.get(name) for name in FACTS}
            settings = {
                key: _as_cell(value) for key, value in {**study.setting, **trial.parameters}.items()
            }
            rows.append({**names, **state, **settings, **facts})
    # dtype object: otherwise integers become floats in a column with an empty cell.
    table = pd.DataFrame(
        rows,
        columns=["setting", "arm", "trial", "state", "score", *varied(sweep), *FACTS],
        dtype=object,
    )
    return table.astype({"score": float})


def _as_cell(value: Scalar) -> Scalar:
    """A value as YAML spells it; None would be an empty cell, which means that the arm does not
    vary the setting.
    """
    return as_word(value) if value is None or isinstance(value, bool) else value


def long(trials: pd.DataFrame) -> pd.DataFrame:
    """The trials with one row per value, so that the columns are the same for every sweep."""
    keys = LONG[:3]
    # dtype object: otherwise integers become floats next to other numbers.
    melted = trials.astype(object).melt(keys, var_name="name", value_name="value")
    kept = melted[melted["value"].notna()].sort_values(keys, kind="stable")
    return kept[LONG]


def best_of_arms(
    trials: pd.DataFrame, direction: str, settings: Sequence[str] = (), *, prunes: bool = False
) -> pd.DataFrame:
    """The best finished trial of each arm in each setting (the first one of a tie), and what the
    arm spent.

    The columns `settings` are filled in even if the arm has no finished trial. With `prunes`, a
    column has the number of runs that were ended early; what they spent counts in any case.
    """
    rows = []
    for (setting, arm), group in trials.groupby(["setting", "arm"], sort=False):
        finished = group[group["state"] == "finished"]
        spent = {
            "setting": setting,
            "arm": arm,
            **{key: group[key].iloc[0] for key in settings},
            "runs": len(finished),
            "failed": int((group["state"] == "failed").sum()),
            **({"pruned": int((group["state"] == "pruned").sum())} if prunes else {}),
            "spent_updates": group["updates"].fillna(0).astype(int).sum(),
            "spent_seconds": round(float(group["seconds"].fillna(0).sum()), 1),
        }
        if not finished.empty:
            ordered = finished.sort_values(
                "score", ascending=direction == "minimize", kind="stable"
            )
            spent |= {
                str(name): value
                for name, value in ordered.iloc[0].items()
                if name not in ("setting", "arm")
            }
        rows.append(spent)
    first = ["setting", "arm", "score", "runs", "failed", *(["pruned"] if prunes else [])]
    first += ["spent_updates", "spent_seconds"]
    # dtype object, for the reason given in `wide`.
    table = pd.DataFrame(rows, columns=list(dict.fromkeys([*first, *trials.columns])), dtype=object)
    return table.drop(columns=["state", "reason"]).astype({"score": float})


def _write_best(sweep: Sweep, studies: Sequence[ArmStudy], made: Results) -> None:
    found = made.best[made.best["score"].notna()]
    if found.empty:
        return
    texts = {index: _best_recipe(sweep, studies, row) for index, row in found.iterrows()}
    for index, row in found.iterrows():
        name = file_name("-".join(part for part in (row["setting"], row["arm"]) if part))
        write_text(made.folder / f"best/{name}.yaml", texts[index])
    best = (
        found["score"].idxmin()
        if sweep.search.score.direction == "minimize"
        else found["score"].idxmax()
    )
    write_text(made.folder / "best.yaml", texts[best])


def _best_recipe(sweep: Sweep, studies: Sequence[ArmStudy], row: Any) -> str:
    """The text of a recipe for `cudt train`; training it finds the run that the sweep trained."""
    study = next(
        one
        for one in studies
        if (setting_name(one.setting), one.arm) == (row["setting"], row["arm"])
    )
    trial = next(one for one in study.trials() if one.number == row["trial"])
    recipe = sweep.recipe(study.setting, study.arm, trial.parameters)
    score = sweep.search.score
    return (
        f"# The best of {row['runs']} runs by validation {score.measure} ({score.direction}: "
        f"{row['score']:.6g})\n"
        f"# of sweep {sweep.name}, "
        f"{sweep.describe(study.setting, study.arm, trial.parameters)}\n{recipe.text()}"
    )


def _info(made: Results, command: str) -> SweepInfo:
    sweep = made.sweep
    return SweepInfo(
        cudt=__version__,
        name=sweep.name,
        recipe=sweep.recipe_name,
        reproduces=sweep.search.reproduces,
        measure=sweep.search.score.measure,
        gammas=sweep.gammas,
        direction=sweep.search.score.direction,
        arms={name: _arm_info(sweep, name) for name in sweep.search.arms},
        settings=list(sweep.search.settings),
        unequal_budgets=sweep.search.unequal_budgets,
        keys=varied(sweep),
        log_keys=_log_keys(sweep),
        finished=made.n_finished,
        failed=made.n_failed,
        pruned=made.n_pruned,
        left=made.left,
        command=command,
    )


def _arm_info(sweep: Sweep, name: str) -> ArmInfo:
    arm = sweep.arm(name)
    pruner = None if arm.pruner is None else arm.pruner.name
    return ArmInfo(sampler=arm.sampler, budget=sweep.budget(name), pruner=pruner)


def _log_keys(sweep: Sweep) -> list[str]:
    searched = [pair for arm in sweep.search.arms.values() for pair in arm.search.items()]
    return [key for key, one in searched if getattr(one, "log", False)]
