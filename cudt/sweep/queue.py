"""Which cell runs next: setting by setting, alternating between arms, so that a stopped sweep has spent equally."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cudt.config.recipe import NamedRecipe
from cudt.sweep.definition import setting_name
from cudt.sweep.study import ArmStudy, Trial
from cudt.utils.errors import UserError

#: Workers that may die while running a cell before it fails: the cell itself may be what kills them.
MAX_DEATHS = 5


@dataclass(eq=False)
class Cell:
    """A trial and the recipe of its run."""

    study: ArmStudy
    trial: Trial
    recipe: NamedRecipe
    deaths: int = 0
    seconds: float = 0.0
    """Worker time so far, earlier attempts included."""

    @property
    def name(self) -> str:
        return self.study.describe(self.trial)

    def spent(self) -> dict[str, Any]:
        return {"seconds": round(self.seconds, 1), "deaths": self.deaths}


class Queue:
    """All cells of a sweep that still have to run."""

    def __init__(self, studies: Sequence[ArmStudy], on_refused: Callable[[str, str], None]) -> None:
        """`on_refused` is called with the name of a cell whose settings the recipe refuses, and the reason."""
        self._studies = studies
        self._on_refused = on_refused
        self._given_back: list[Cell] = []
        self._begun = {
            id(study): sum(trial.state != "waiting" for trial in study.trials()) - study.n_orphans for study in studies
        }
        self._is_closed = False

    def next(self) -> Cell | None:
        """The next cell; None if none is left or the queue is closed."""
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
        """Put a cell whose worker died at the front."""
        self._given_back.append(cell)

    def close(self) -> None:
        """Start no further cells."""
        self._is_closed = True

    def _cell(self, study: ArmStudy) -> Cell | None:
        while not self._is_closed and (trial := study.next()):
            self._begun[id(study)] += 1
            try:
                recipe = study.sweep.recipe(study.setting, study.arm, trial.parameters)
            except UserError as error:
                study.fail(trial.number, str(error), {})
                self._on_refused(study.describe(trial), str(error))
                continue
            return Cell(study, trial, recipe, trial.facts.get("deaths", 0), trial.facts.get("seconds", 0.0))
        return None
