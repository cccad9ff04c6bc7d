"""What a search file may say: which settings of a recipe are searched, by whom, for how many runs, and for what.

recipe: imdb-roberta                     # or --recipe
score: {measure: grid, direction: maximize}
settings: {noise.gamma_train: [0.0, 0.8]}     # the whole search, once in each
arms:
  constrained:
    sampler: tpe
    budget: 5
    search: {descent.alpha: {low: 0.05, high: 0.5}}
  erm: {sampler: seeds, budget: 5, fixed: {objective: erm}}
"""

from __future__ import annotations

import itertools
import math
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PlainValidator, Tag, field_validator

from cudt.config.schema import Count, Gammas, Section, as_grid

Scalar = bool | int | float | str | None


class Range(Section):
    """From `low` to `high`, both included; evenly, by the logarithm, in steps, or whole numbers alone."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    type: Literal["float", "int"] = "float"

    def mistakes(self) -> list[str]:
        """What no sampler can draw from."""
        found = []
        if self.low >= self.high:
            found.append(f"an empty range: low {self.low:g} is not below high {self.high:g}")
        if self.log and self.low <= 0:
            found.append(f"low = {self.low:g}: a log range begins above 0")
        if self.log and self.step is not None:
            found.append("log and step: give one of them, or list the values")
        if self.step is not None and self.step <= 0:
            found.append(f"step = {self.step:g}: must be above 0")
        elif self.step is not None and self.low < self.high and self.count < 2:
            found.append(f"step = {self.step:g}: larger than the range, so that {self.low:g} is its only value")
        ends = {"low": self.low, "high": self.high, "step": self.step}
        broken = [name for name, value in ends.items() if value is not None and value != int(value)]
        if self.type == "int" and broken:
            found.append(f"type int: {' and '.join(broken)} must be whole")
        return found

    @property
    def is_continuous(self) -> bool:
        return self.type == "float" and self.step is None

    def ends(self) -> list[Scalar]:
        return [int(end) if self.type == "int" else float(end) for end in (self.low, self.high)]

    @property
    def count(self) -> int:
        """How many values there are, where they can be counted; no list is made of them."""
        low, high, step = self._exact
        return int((high - low) / step) + 1

    def values(self) -> list[Scalar]:
        """Every value, where they can be counted."""
        return [self._value(index) for index in range(self.count)]

    def snapped(self, value: float) -> Scalar:
        """The nearest of the values: what is computed in steps may be off in its last digit."""
        if self.is_continuous:
            return value
        low, _, step = self._exact
        index = round((Decimal(repr(float(value))) - low) / step)
        return self._value(min(max(index, 0), self.count - 1))

    def _value(self, index: int) -> Scalar:
        low, _, step = self._exact
        number = low + step * index
        return int(number) if self.type == "int" else float(number)

    @property
    def _exact(self) -> tuple[Decimal, Decimal, Decimal]:
        """Low, high and step as they were written, so that no multiple of a step is off by a digit."""
        return Decimal(repr(self.low)), Decimal(repr(self.high)), Decimal(repr(self.step or 1.0))


def _search_kind(value: Any) -> str:
    return "<range>" if isinstance(value, dict | Range) else "<list>"


def _scalar(value: Any) -> Scalar:
    """One check for all kinds: as a union, each of them would tell its own mistake."""
    if isinstance(value, float) and math.isfinite(value):
        return value
    if value is None or isinstance(value, bool | int | str):
        return value
    raise ValueError("a choice is a word, a number, true, false or null")


Choices = Annotated[list[Annotated[Scalar, PlainValidator(_scalar)]], Field(min_length=1)]
Searched = Annotated[
    Annotated[Range, Tag("<range>")] | Annotated[Choices, Tag("<list>")],
    Discriminator(_search_kind),
]


def values_of(searched: Range | list[Scalar]) -> list[Scalar]:
    """Every value of something that can be counted."""
    return searched.values() if isinstance(searched, Range) else list(searched)


def combinations(choices: dict[str, list[Scalar]]) -> list[dict[str, Scalar]]:
    """Each value of each key with each of the others; the last key changes fastest."""
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


class Score(Section):
    """The number a run is judged by, always on validation data."""

    measure: Literal["metric", "loss", "grid"]
    """The metric or the loss at γ_train, or the mean metric over a grid of γ."""
    direction: Literal["maximize", "minimize"]
    gammas: Gammas | None = None
    """The grid; else that of the recipe's evaluation."""

    @field_validator("gammas")
    @classmethod
    def _are_gammas(cls, gammas: str | list[float] | None) -> str | list[float] | None:
        if gammas is not None:
            as_grid(gammas)
        return gammas


class Arm(Section):
    """One side of a comparison: its own settings, and how its runs are chosen."""

    sampler: Literal["tpe", "grid", "random", "seeds"]
    budget: Count | None = None
    """Runs in each setting; of a grid, as many as it has cells."""
    fixed: dict[str, Any] = Field(default_factory=dict)
    search: dict[str, Searched] = Field(default_factory=dict)


class Search(Section):
    """A search file."""

    name: Annotated[str, Field(pattern=r"^\w[\w.-]*$")] | None = None
    """Of the sweep's folder; else as the file is called."""
    reproduces: str = ""
    recipe: str | None = None
    score: Score
    fixed: dict[str, Any] = Field(default_factory=dict)
    """Settings of the recipe that all runs have instead of its own."""
    settings: dict[str, Choices] = Field(default_factory=dict)
    """Settings that are not searched but compared: every arm has its whole budget at each combination."""
    arms: Annotated[dict[str, Arm], Field(min_length=1)]
    unequal_budgets: str | None = None
    """Why the arms' budgets differ; told with the results."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Of the samplers."""
