"""Which cell comes next: setting by setting, the arms side by side, so that a sweep that is stopped has spent alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cudt.config.recipe import NamedRecipe
from cudt.sweep.definition import setting_name
from cudt.sweep.study import ArmStudy, Trial
from cudt.utils.errors import UserError

#: A cell whose workers died so often is not given to another: it may be what kills them.
MOST_DEATHS = 5


@dataclass(eq=False)
class Cell:
    """A trial and the run that it is."""

    study: ArmStudy
    trial: Trial
    recipe: NamedRecipe
    deaths: int = 0
    seconds: float = 0.0
    """At work on it before now, by workers that are gone."""

    @property
    def name(self) -> str:
        return self.study.describe(self.trial)

    def spent(self) -> dict[str, Any]:
        return {"seconds": round(self.seconds, 1), "deaths": self.deaths}


class Queue:
    """All cells of a sweep that are to be done."""

    def __init__(self, studies: list[ArmStudy], refused: Callable[[str, str], None]) -> None:
        """`refused` is told the name of a cell whose settings the recipe does not take, and why."""
        self._studies = studies
        self._refused = refused
        self._given_back: list[Cell] = []
        self._begun = {
            id(study): sum(trial.state != "waiting" for trial in study.trials()) - study.n_orphans for study in studies
        }
        self._is_closed = False

    def next(self) -> Cell | None:
        """The next cell; None where there is none, or no other is wanted."""
        if self._is_closed:
            return None
        if self._given_back:
            return self._given_back.pop(0)
        for setting in dict.fromkeys(setting_name(study.setting) for study in self._studies):
            arms = [study for study in self._studies if setting_name(study.setting) == setting]
            for study in sorted(arms, key=lambda study: self._begun[id(study)]):
                if cell := self._cell(study):
                    return cell
        return None

    def give_back(self, cell: Cell) -> None:
        """A cell whose worker is gone goes first."""
        self._given_back.append(cell)

    def close(self) -> None:
        """Nothing more is to be begun."""
        self._is_closed = True

    def _cell(self, study: ArmStudy) -> Cell | None:
        while not self._is_closed and (trial := study.next()):
            self._begun[id(study)] += 1
            try:
                recipe = study.sweep.recipe(study.setting, study.arm, trial.parameters)
            except UserError as error:
                study.fail(trial.number, str(error), {})
                self._refused(study.describe(trial), str(error))
                continue
            return Cell(study, trial, recipe, trial.facts.get("deaths", 0), trial.facts.get("seconds", 0.0))
        return None
