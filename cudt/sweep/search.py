"""The search file: which settings of a recipe are searched, how, with how many runs, by which
score. `docs/guides/sweeps.md` has an example.
"""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from cudt.config.errors import Mistake
from cudt.config.recipe import name_problem
from cudt.config.schema import Count, CountFromZero, Gammas, Section, Seed
from cudt.utils.text import brief

if TYPE_CHECKING:
    from optuna.distributions import FloatDistribution, IntDistribution

Scalar = bool | int | float | str | None
#: Values of a recipe's settings, by dotted key.
Settings = dict[str, Scalar]
#: Combinations up to which all are listed.
MOST_LISTED = 10_000


class Range(Section):
    """From `low` to `high`, both included: continuous, logarithmic, in steps, or integers."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    type: Literal["float", "int"] = "float"

    @model_validator(mode="after")
    def _can_be_drawn_from(self) -> Range:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low:g}) must be below high ({self.high:g})")
        ends = (self.low, self.high, self.step or 1)
        if self.type == "int" and any(end != int(end) for end in ends):
            raise ValueError("type int: low, high and step must be integers")
        self.distribution()
        return self

    def distribution(self) -> IntDistribution | FloatDistribution:
        """Optuna's distribution; its errors say what is wrong with a range."""
        # Imported for the first range: `cudt recipes` does not wait for it.
        from optuna.distributions import FloatDistribution, IntDistribution

        with warnings.catch_warnings():
            # Where `high` is not a multiple of `step`, the last multiple is the end.
            warnings.simplefilter("ignore", UserWarning)
            if self.type == "int":
                step = int(self.step or 1)
                return IntDistribution(int(self.low), int(self.high), self.log, step)
            return FloatDistribution(self.low, self.high, self.log, self.step)

    @property
    def count(self) -> float:
        """The number of values; infinite if the range is continuous."""
        one = self.distribution()
        return math.inf if one.step is None else round((one.high - one.low) / one.step) + 1

    def ends(self) -> list[Scalar]:
        one = self.distribution()
        return [one.low, one.high]

    def values(self) -> list[Scalar]:
        """Every value of a range that is not continuous."""
        one = self.distribution()
        return [exact(one.low + n * (one.step or 0)) for n in range(int(self.count))]


def exact(value: float) -> Scalar:
    """A multiple of a step as it is written: Optuna's 0.15000000000000002 would be another run."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


Choices = Annotated[list[Any], Field(min_length=1)]
Searched = Annotated[
    Annotated[Range, Tag("<range>")] | Annotated[Choices, Tag("<list>")],
    Discriminator(lambda one: "<range>" if isinstance(one, dict | Range) else "<list>"),
]


class Score(Section):
    """The number by which runs are ranked, always on validation data."""

    measure: Literal["metric", "loss", "grid"]
    """The metric or the loss at γ_train, or the mean metric over a grid of noise levels γ."""
    direction: Literal["maximize", "minimize"]
    gammas: Gammas | None = None
    """The grid; by default, that of the recipe's evaluation."""


class Pruner(Section):
    """When runs of an arm are ended early. Runs are compared after the same number of epochs."""

    name: Literal["median", "halving", "hyperband"]
    warmup_epochs: CountFromZero = 0
    """No run is ended in its first `warmup_epochs` epochs."""
    min_finished: Count = 3
    """Runs in the same setting that finish before any is ended."""


class Arm(Section):
    """One side of a comparison: its settings, and how its runs are drawn."""

    sampler: Literal["tpe", "grid", "random", "seeds"]
    budget: Count | None = None
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
    def keys(self) -> list[str]:
        """The keys of the recipe that differ between its runs."""
        return ["seed"] if self.sampler == "seeds" else [*self.search]

    @property
    def n_combinations(self) -> float:
        """The number of combinations of searched values; infinite with a continuous range."""
        every = self.search.values()
        return math.prod(one.count if isinstance(one, Range) else len(one) for one in every)

    @property
    def runs_per_setting(self) -> float:
        """The budget, or the size of a grid."""
        return self.n_combinations if self.sampler == "grid" else self.budget or 0

    def combinations(self) -> list[Settings]:
        """Every combination of searched values; for arms without a continuous range."""
        every = self.search.items()
        return combinations(
            {key: one.values() if isinstance(one, Range) else one for key, one in every}
        )

    @property
    def probes(self) -> dict[str, list[Scalar]]:
        """The values of each searched key that are checked: every choice, the ends of a range."""
        every = self.search.items()
        return {key: one.ends() if isinstance(one, Range) else one for key, one in every}

    @property
    def first(self) -> Settings:
        """The first choice or lowest value of each searched key."""
        return {key: values[0] for key, values in self.probes.items()}


def combinations(choices: Mapping[str, list[Scalar]]) -> list[Settings]:
    """The Cartesian product of the values; the last key changes fastest."""
    every = itertools.product(*choices.values())
    return [dict(zip(choices, values, strict=True)) for values in every]


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
    seed: Seed = 0
    """Seed of the samplers."""

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str | None) -> str | None:
        if name is not None and (problem := name_problem(name)):
            raise ValueError(problem)
        return name


# ---------------------------------------------------------------- checks without the recipe


def mistakes(search: Search) -> Iterator[Mistake]:
    """What is wrong with a search file, whatever its recipe."""
    settings = search.settings
    yield from _choices(("settings",), settings, {"fixed": search.fixed})
    for name, arm in search.arms.items():
        path = ("arms", name)
        if not re.fullmatch(r"\w[\w.-]*", name) or name_problem(name):
            yield Mistake(path, "invalid arm name: use letters, digits, '_', '-' and '.'")
        others = {"fixed": search.fixed, "settings": settings, f"arms.{name}.fixed": arm.fixed}
        yield from _choices((*path, "search"), arm.search, others)
        yield from _choices((*path, "fixed"), dict.fromkeys(arm.fixed), {"settings": settings})
        if arm.sampler == "seeds" and "seed" in settings:
            yield Mistake((*path, "sampler"), "sampler seeds sets the seed; remove it in settings")
        yield from (Mistake((*path, *key), why) for key, why in _of_arm(arm))
    found = {name: arm.runs_per_setting for name, arm in search.arms.items()}
    if len({*found.values()}) > 1 and search.unequal_budgets is None:
        listed = ", ".join(f"{name} {runs}" for name, runs in found.items())
        yield Mistake(
            ("arms",),
            f"unequal budgets ({listed} runs): the best of more runs is better by chance alone; "
            "make them equal, or give the reason in unequal_budgets",
        )
    if len({*found.values()}) == 1 and search.unequal_budgets is not None:
        yield Mistake(("unequal_budgets",), "the budgets are equal; remove this key")


def _choices(
    path: tuple[str, ...], keys: Mapping[str, Any], others: dict[str, dict[str, Any]]
) -> Iterator[Mistake]:
    """Keys that are set elsewhere too, and choices that are listed twice."""
    for key, choices in keys.items():
        for other in (other for other, taken in others.items() if key in taken):
            yield Mistake((*path, key), f"also set in {other}; remove one of them")
        # By repr, because True == 1 in Python.
        words = [repr(value) for value in choices] if isinstance(choices, list) else []
        for word in dict.fromkeys(one for one in words if words.count(one) > 1):
            yield Mistake((*path, key), f"{brief(word)} is listed twice")


def _of_arm(arm: Arm) -> Iterator[tuple[tuple[str, ...], str]]:
    """What an arm lacks for its sampler, and its pruner."""
    if arm.sampler == "seeds" and arm.search:
        yield ("search",), "sampler seeds varies only the seed; to search more, use sampler grid"
    if arm.sampler != "seeds" and not arm.search:
        yield ("search",), f"missing; sampler {arm.sampler} needs settings to search"
    if arm.sampler != "grid" and arm.budget is None:
        yield ("budget",), "missing; set the number of runs"
    count = arm.n_combinations
    if arm.sampler == "grid" and count > MOST_LISTED:
        what = "a continuous range" if count == math.inf else f"{count:,} runs"
        yield ("search",), f"a grid cannot have {what}; list the values, or give a larger step"
    elif arm.sampler == "grid" and arm.budget not in (None, count):
        yield ("budget",), f"expected {count}, the size of the grid, or none, got {arm.budget}"
    elif arm.search and arm.sampler != "grid" and (arm.budget or 0) > count:
        yield ("budget",), f"expected at most {count}, the number of combinations"
    if arm.pruner is not None and "training.epochs" in arm.search:
        yield ("pruner",), "compares runs of as many epochs: training.epochs cannot be searched"
