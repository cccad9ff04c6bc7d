"""The schema of a search file: which settings of a recipe are searched, how, with how many runs, by
which score.

recipe: imdb-roberta                          # or --recipe
score: {measure: grid, direction: maximize}
settings: {noise.gamma_train: [0.0, 0.8]}     # the whole search is run at each value
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

from cudt.config.recipe import name_problem
from cudt.config.schema import Count, CountFromZero, Gammas, Section

Scalar = bool | int | float | str | None
#: More runs of an arm are taken for a typing error.
Budget = Annotated[int, Field(ge=1, le=100_000)]


class Range(Section):
    """From `low` to `high`, both included: continuous, logarithmic, in steps, or integers."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    type: Literal["float", "int"] = "float"

    def mistakes(self) -> list[str]:
        """Why no sampler can draw from this range."""
        found = []
        if self.low >= self.high:
            found.append(f"empty range: low ({self.low:g}) must be below high ({self.high:g})")
        if self.log and self.low <= 0:
            found.append(f"low must be above 0 in a log range, got {self.low:g}")
        if self.log and self.step is not None:
            found.append("log and step cannot be combined; remove one of them, or list the values")
        if self.step is not None and self.step <= 0:
            found.append(f"step must be above 0, got {self.step:g}")
        elif self.step is not None and self.low < self.high and self.count < 2:
            found.append(
                f"step {self.step:g} is larger than the range, which leaves {self.low:g} as the "
                "only value"
            )
        ends = {"low": self.low, "high": self.high, "step": self.step}
        broken = [name for name, value in ends.items() if value is not None and value != int(value)]
        if self.type == "int" and broken:
            found.append(f"type int: {' and '.join(broken)} must be an integer")
        return found

    @property
    def is_continuous(self) -> bool:
        return self.type == "float" and self.step is None

    def ends(self) -> list[Scalar]:
        return [int(end) if self.type == "int" else float(end) for end in (self.low, self.high)]

    @property
    def count(self) -> int:
        """The number of values of a range that is not continuous, without listing them."""
        low, high, step = self._exact
        return int((high - low) / step) + 1

    def values(self) -> list[Scalar]:
        """Every value of a range that is not continuous."""
        return [self._value(index) for index in range(self.count)]

    def snapped(self, value: float) -> Scalar:
        """The nearest value of the range: a sampler that adds up steps is off in the last digit."""
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
        """Low, high and step as decimals, so that multiples of a step are exact."""
        return Decimal(repr(self.low)), Decimal(repr(self.high)), Decimal(repr(self.step or 1.0))


def _search_kind(value: Any) -> str:
    return "<range>" if isinstance(value, dict | Range) else "<list>"


def _scalar(value: Any) -> Scalar:
    """Validate a choice; a union of types would report one error per type."""
    if isinstance(value, float) and math.isfinite(value):
        return value
    if value is None or isinstance(value, bool | int | str):
        return value
    raise ValueError("expected a string, a number, true, false or null")


Choices = Annotated[list[Annotated[Scalar, PlainValidator(_scalar)]], Field(min_length=1)]
Searched = Annotated[
    Annotated[Range, Tag("<range>")] | Annotated[Choices, Tag("<list>")],
    Discriminator(_search_kind),
]


def values_of(searched: Range | list[Scalar]) -> list[Scalar]:
    """Every value of a list, or of a range that is not continuous."""
    return searched.values() if isinstance(searched, Range) else list(searched)


def as_equal(value: Scalar) -> tuple[bool, Scalar]:
    """A key under which 1 and 1.0 are equal, and 1 and true are not."""
    return isinstance(value, bool), value


def combinations(choices: dict[str, list[Scalar]]) -> list[dict[str, Scalar]]:
    """The Cartesian product of the values; the last key changes fastest."""
    return [
        dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    ]


class Score(Section):
    """The number by which runs are ranked, always on validation data."""

    measure: Literal["metric", "loss", "grid"]
    """The metric or the loss at γ_train, or the mean metric over a grid of noise levels γ."""
    direction: Literal["maximize", "minimize"]
    gammas: Gammas | None = None
    """The grid; by default, that of the recipe's evaluation."""


class Pruner(Section):
    """When runs of an arm are ended early, by an Optuna pruner. It compares runs after the same
    number of epochs.
    """

    name: Literal["median", "halving", "hyperband"]
    """A run ends if its best epoch is worse than the median of the finished runs at the same epoch
    (`median`), or if it is not among the best quarter of those that came as far (`halving`,
    asynchronous successive halving; `hyperband` runs it from several first epochs, with the best
    third)."""
    warmup_epochs: CountFromZero = 0
    """No run is ended in its first `warmup_epochs` epochs."""
    min_finished: Count = 3
    """Runs in the same setting that finish before any is ended."""


class Arm(Section):
    """One side of a comparison: its settings, and how its runs are drawn."""

    sampler: Literal["tpe", "grid", "random", "seeds"]
    budget: Budget | None = None
    """Runs in each setting; a grid needs none."""
    fixed: dict[str, Any] = Field(default_factory=dict)
    search: dict[str, Searched] = Field(default_factory=dict)
    pruner: Pruner | None = None
    """Ends runs early that look worse than others; its name alone takes the defaults."""

    @field_validator("pruner", mode="before")
    @classmethod
    def _by_name(cls, pruner: Any) -> Any:
        return {"name": pruner} if isinstance(pruner, str) else pruner

    @property
    def runs_per_setting(self) -> int | None:
        """The budget, or the size of a grid; None if unknown."""
        return self.n_combinations if self.sampler == "grid" else self.budget

    @property
    def n_combinations(self) -> int | None:
        """The number of combinations of searched values; None if a range is continuous or
        invalid.
        """
        counts = []
        for searched in self.search.values():
            if isinstance(searched, Range) and (searched.mistakes() or searched.is_continuous):
                return None
            counts.append(searched.count if isinstance(searched, Range) else len(searched))
        return math.prod(counts)


class Search(Section):
    """A search file."""

    name: str | None = None
    """Names the sweep's folder; by default, the file's name."""
    reproduces: str = ""
    recipe: str | None = None
    score: Score
    fixed: dict[str, Any] = Field(default_factory=dict)
    """Settings of the recipe that are changed for all runs."""
    settings: dict[str, Choices] = Field(default_factory=dict)
    """Settings that are compared, not searched: every arm has its whole budget at each combination
    of values."""
    arms: Annotated[dict[str, Arm], Field(min_length=1)]
    unequal_budgets: str | None = None
    """Why the arms have different budgets; shown with the results."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the samplers."""

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str | None) -> str | None:
        if name is not None and (problem := name_problem(name)):
            raise ValueError(problem)
        return name

    @property
    def pruning_arms(self) -> list[str]:
        """The arms that end runs early."""
        return [name for name, arm in self.arms.items() if arm.pruner is not None]
