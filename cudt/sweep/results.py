"""The files in a sweep's folder:

sweep.yaml       the search file; its recipe is base.yaml, the recipe as it was when the sweep began
sweep.json       what was searched, and by which score
trials_wide.csv  one row per trial
best.csv         the best trial of each arm in each setting, and what the arm spent
best.yaml        the recipe of the best run of all; best/ has one for each arm in each setting
study.db         the Optuna studies
logs/            the output of the workers
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from cudt import __version__
from cudt.sweep.search import Sweep, as_word, label
from cudt.sweep.studies import ArmStudy
from cudt.utils.files import file_name, write_text

#: The columns of a trial besides its settings.
FACTS = (
    *("run", "seconds", "updates", "best_epoch", "validation_loss", "validation_metric"),
    *("feasible", "violated", "monotone", "reason"),
)


@dataclass(frozen=True)
class Results:
    """A sweep's tables."""

    sweep: Sweep
    folder: Path
    trials: pd.DataFrame
    best: pd.DataFrame

    def count(self, state: str) -> int:
        """The number of trials in a state."""
        return int((self.trials["state"] == state).sum())


def write(studies: Sequence[ArmStudy], out: Path) -> Results:
    """Write every file of a sweep except its studies and logs."""
    sweep = studies[0].sweep
    trials = wide(sweep, studies)
    made = Results(sweep, sweep.folder(out), trials, best := best_of_arms(trials, sweep))
    info = {
        "cudt": __version__,
        "name": sweep.name,
        "recipe": sweep.recipe_name,
        "measure": sweep.search.score.measure,
        "direction": sweep.search.score.direction,
        "arms": {
            name: {"sampler": arm.sampler, "budget": arm.runs_per_setting}
            for name, arm in sweep.search.arms.items()
        },
        "keys": sweep.keys,
    }
    texts = {
        **sweep.texts(),
        **_best_recipes(made, studies),
        "trials_wide.csv": trials.to_csv(index=False),
        "best.csv": best.to_csv(index=False),
        "sweep.json": json.dumps(info, indent=2, ensure_ascii=False) + "\n",
    }
    for name, text in texts.items():
        write_text(made.folder / name, text)
    return made


def wide(sweep: Sweep, studies: Sequence[ArmStudy]) -> pd.DataFrame:
    """One row per trial whose settings are drawn; settings that an arm does not vary are empty."""
    rows = []
    for study in studies:
        for number, cell in study.cells().items():
            if cell.settings is None:
                continue
            row = {"setting": label(study.setting), "arm": study.name, "trial": number}
            score = cell.trial.value if cell.state == "finished" else None
            settings = {
                # None would be an empty cell, which means that the arm does not vary the setting.
                key: as_word(one) if one is None or isinstance(one, bool) else one
                for key, one in {**study.setting, **cell.settings}.items()
            }
            rows.append({**row, "state": cell.state, "score": score, **settings, **cell.facts})
    columns = ["setting", "arm", "trial", "state", "score", *sweep.keys, *FACTS]
    # dtype object: otherwise integers become floats in a column with an empty cell.
    return pd.DataFrame(rows, columns=columns, dtype=object).astype({"score": float})


def best_of_arms(trials: pd.DataFrame, sweep: Sweep) -> pd.DataFrame:
    """The best finished trial of each arm in each setting, and what the arm spent.

    Runs that meet their constraints come before all that do not; the first one of a tie counts.
    """
    rows = []
    for (setting, arm), group in trials.groupby(["setting", "arm"], sort=False):
        finished = group[group["state"] == "finished"]
        chosen = {} if finished.empty else finished.loc[_best(finished, sweep)].to_dict()
        spent = {
            "runs": len(finished),
            **{state: int((group["state"] == state).sum()) for state in ("failed", "pruned")},
            "spent_updates": int(group["updates"].fillna(0).sum()),
            "spent_seconds": round(float(group["seconds"].fillna(0).sum()), 1),
        }
        compared = {key: group[key].iloc[0] for key in sweep.search.settings}
        rows.append({"setting": setting, "arm": arm, **compared, "score": None, **spent, **chosen})
    columns = [*dict.fromkeys([*(rows[0] if rows else []), *trials.columns])]
    table = pd.DataFrame(rows, columns=columns, dtype=object)
    return table.drop(columns=["state", "reason"]).astype({"score": float})


def _best(rows: pd.DataFrame, sweep: Sweep) -> Any:
    """The index of the best row: feasible first, then by score."""
    is_rising = sweep.search.score.direction == "minimize"
    ranked = rows.assign(infeasible=rows["violated"].fillna(0) > 0)
    order = {"by": ["infeasible", "score"], "ascending": [True, is_rising]}
    return ranked.sort_values(**order, kind="stable").index[0]


def _best_recipes(made: Results, studies: Sequence[ArmStudy]) -> dict[str, str]:
    """The recipes of the best runs; training one finds the run that the sweep trained."""
    texts: dict[str, str] = {}
    found, score = made.best[made.best["score"].notna()], made.sweep.search.score
    by_names = {(label(study.setting), study.name): study for study in studies}
    for index, row in found.iterrows():
        study = by_names[row["setting"], row["arm"]]
        own = study.cells()[row["trial"]].settings or {}
        name = file_name("-".join(filter(None, [row["setting"], row["arm"]])))
        texts[f"best/{name}.yaml"] = text = (
            f"# The best of {row['runs']} runs by validation {score.measure} ({score.direction}: "
            f"{row['score']:.6g})\n# of sweep {made.sweep.name}, {study.describe(own)}\n"
            f"{made.sweep.recipe(study.setting, study.name, own).text()}"
        )
        if index == _best(found, made.sweep):
            texts["best.yaml"] = text
    return texts
