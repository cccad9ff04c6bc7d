"""The search file: which settings of a recipe are searched, how, with how many runs, by which
score; and the recipe of every run it leads to. `docs/sweeps.md` has an example.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, ValidationError, model_validator

from cudt.config import errors, plugins, yaml
from cudt.config import recipe as recipes
from cudt.config.levels import GAMMA, parse_levels
from cudt.config.recipe import NamedRecipe, checked_name
from cudt.config.schema import Count, Gammas, Section, Seed
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    from optuna.distributions import FloatDistribution

Scalar = bool | int | float | str | None
#: Values of a recipe's settings, by dotted key.
Settings = dict[str, Scalar]
#: The recipe in a sweep's folder, next to its search file.
BASE_FILE = "base.yaml"


class Range(Section):
    """Any number from `low` to `high`, both included; `log` draws its logarithm evenly."""

    low: float
    high: float
    log: bool = False

    @model_validator(mode="after")
    def _can_be_drawn_from(self) -> Range:
        self.distribution()
        return self

    def distribution(self) -> FloatDistribution:
        """Optuna's distribution; its errors say what is wrong with a range."""
        # Imported for the first range: `cudt recipes` does not wait for it.
        from optuna.distributions import FloatDistribution

        return FloatDistribution(self.low, self.high, self.log)


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


class Arm(Section):
    """One side of a comparison: its settings, and how its runs are drawn."""

    sampler: Literal["tpe", "grid", "random", "seeds"]
    budget: Count | None = None
    """Runs in each setting; a grid needs none."""
    fixed: dict[str, Any] = Field(default_factory=dict)
    search: dict[str, Searched] = Field(default_factory=dict)
    pruner: Literal["median", "halving", "hyperband"] | None = None
    """Ends runs early that look worse than others after the same number of epochs."""

    @model_validator(mode="after")
    def _can_be_run(self) -> Arm:
        if (self.sampler == "seeds") == bool(self.search):
            raise ValueError("sampler seeds has no settings to search, and all others need some")
        if self.sampler == "grid":
            if any(isinstance(one, Range) for one in self.search.values()):
                raise ValueError("a grid cannot have a range; list its values")
            if self.budget is not None:
                raise ValueError("budget: a grid has none; its runs are counted")
        elif self.budget is None:
            raise ValueError("budget is missing: the number of runs")
        return self

    @property
    def keys(self) -> list[str]:
        """The keys of the recipe that differ between its runs."""
        return ["seed"] if self.sampler == "seeds" else [*self.search]

    @property
    def probes(self) -> dict[str, list[Scalar]]:
        """The values of each searched key that are checked: every choice, the ends of a range."""
        every = self.search.items()
        return {key: [one.low, one.high] if isinstance(one, Range) else one for key, one in every}

    @property
    def runs_per_setting(self) -> int:
        """The budget, or the size of a grid."""
        return len(combinations(self.probes)) if self.sampler == "grid" else self.budget or 0

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
    seed: Seed = 0
    """Seed of the samplers."""

    @model_validator(mode="after")
    def _arms_are_comparable(self) -> Search:
        for name, arm in self.arms.items():
            keys = [*self.settings, *arm.fixed, *arm.keys]
            if twice := {key for key in keys if keys.count(key) > 1}:
                raise ValueError(f"arms.{name}: {', '.join(sorted(twice))} is set in two places")
        budgets = {name: arm.runs_per_setting for name, arm in self.arms.items()}
        if len({*budgets.values()}) > 1:
            listed = ", ".join(f"{name} {runs}" for name, runs in budgets.items())
            raise ValueError(
                f"budgets ({listed} runs) must be equal: the best of more runs is better by chance"
            )
        return self


# ---------------------------------------------------------------- a search of a recipe


@dataclass(frozen=True)
class Sweep:
    """Settings × arms; each arm has its whole budget of runs in each setting."""

    name: str
    recipe_name: str
    base: dict[str, Any]
    """The recipe as read; it may be incomplete without the settings of the search file."""
    search: Search

    @cached_property
    def settings(self) -> list[Settings]:
        """The combinations of compared settings; one empty setting if nothing is compared."""
        return combinations(self.search.settings)

    def budget(self, arm: str) -> int:
        """Runs of an arm in each setting."""
        return self.search.arms[arm].runs_per_setting

    def values(self, *changes: Mapping[str, Any]) -> dict[str, Any]:
        """The recipe with the search file's `fixed` settings, then with these."""
        values = copy.deepcopy(self.base)
        for change in (self.search.fixed, *changes):
            for key, value in change.items():
                recipes.put(values, key, copy.deepcopy(value))
        return values

    def recipe(self, setting: Settings, arm: str, own: Settings) -> NamedRecipe:
        """The recipe of one run."""
        values = self.values(setting, self.search.arms[arm].fixed, own)
        where = f"search {self.name}: {label(setting, arm, own)}"
        return NamedRecipe(self.recipe_name, recipes.validate(values, where))

    @cached_property
    def first_recipe(self) -> NamedRecipe:
        """The recipe of one run, for what all have in common."""
        name, arm = next(iter(self.search.arms.items()))
        return self.recipe(self.settings[0], name, arm.first)

    @cached_property
    def keys(self) -> list[str]:
        """The keys of recipes that differ between runs, settings first."""
        own = [key for arm in self.search.arms.values() for key in arm.keys]
        return list(dict.fromkeys([*self.search.settings, *own]))

    @cached_property
    def gammas(self) -> list[float] | None:
        """The noise levels that the score averages over; None for a score at γ_train."""
        score = self.search.score
        if score.measure != "grid":
            return None
        if score.gammas is not None:
            return parse_levels(score.gammas)
        return self.first_recipe.settings.evaluation.levels(GAMMA)

    def identity(self) -> str:
        """Eight hex digits over recipe and search, without budgets: a larger budget continues the
        same sweep.
        """
        # Of the evaluation, only the levels of the score matter; they are added below.
        shaping = recipes.shaping_values(self.values())
        search = self.search.model_dump(exclude={"name", "reproduces", "recipe", "fixed"})
        for arm in search["arms"].values():
            del arm["budget"]
        search["score"]["gammas"] = self.gammas
        text = json.dumps([self.recipe_name, shaping, search], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def title(self) -> str:
        """The name of its folder."""
        return f"{self.name}-{self.identity()}"

    def folder(self, out: Path) -> Path:
        return out / "sweeps" / self.recipe_name / self.title

    def texts(self) -> dict[str, str]:
        """The search file of this sweep, and its recipe as a file that keeps its name."""
        search = self.search.model_dump(mode="json", exclude_unset=True, exclude={"name", "recipe"})
        return {
            "sweep.yaml": yaml.dump({"name": self.name, "recipe": BASE_FILE, **search}),
            BASE_FILE: yaml.dump({"name": self.recipe_name, **self.base}),
        }

    def check(self) -> None:
        """Refuse invalid recipes, and values that train the same run: each value is tried with the
        first of the others.
        """
        for name, arm in self.search.arms.items():
            self.recipe(self.settings[0], name, arm.first)
            for key, every in {**self.search.settings, **arm.probes}.items():
                trained = []
                for value in every:
                    recipe = self.recipe(self.settings[0], name, {**arm.first, key: value})
                    objective = recipe.settings.objective
                    is_free = not plugins.has("objective", objective, "is_constrained")
                    ignored = ["descent"] if is_free and "objective" not in arm.keys else []
                    trained.append(recipes.shaping_values(recipe.resolved(), *ignored))
                if key in arm.search and len(every) > 1 and trained[0] == trained[-1]:
                    where = f"search {self.name}: arms.{name}.search.{key}"
                    raise UserError(
                        f"{where}: does not affect training; all runs would be the same"
                    )


def label(setting: Settings, arm: str = "", own: Settings | None = None) -> str:
    """Settings in a line, like `model.layers=3, erm: seed=0`."""
    compared = [f"{key}={as_word(value)}" for key, value in setting.items()]
    drawn = [
        f"{key}={one:.4g}" if isinstance(one, float) else f"{key}={as_word(one)}"
        for key, one in (own or {}).items()
    ]
    words = ", ".join(filter(None, [*compared, arm]))
    return ": ".join(filter(None, [words, ", ".join(drawn)]))


def as_word(value: Scalar) -> str:
    """A value as YAML spells it."""
    return value if isinstance(value, str) else json.dumps(value)


# ---------------------------------------------------------------- files


def load(name_or_file: str, recipe: str | None = None, fixed: Settings | None = None) -> Sweep:
    """A valid sweep; `recipe` overrides the file's own, and `fixed` is added to the file's."""
    path = recipes.locate(name_or_file, "search")
    values, source = recipes.read(path, "search"), f"search {path.stem}"
    if fixed:
        values["fixed"] = {**(values.get("fixed") or {}), **fixed}
    try:
        search = Search.model_validate(values)
    except ValidationError as error:
        errors.refuse(source, errors.explain(Search, error))
    if (named := recipe or search.recipe) is None:
        raise UserError(f"{source}: recipe: missing; name one here, or with --recipe")
    beside = path.parent / named
    file = beside if recipe is None and beside.is_file() else recipes.locate(named)
    base = recipes.read(file)
    recipe_name = checked_name(base.pop("name", file.stem), f"{file}: name")
    name = checked_name(search.name or path.stem, f"{source}: name")
    sweep = Sweep(name, recipe_name, base, search)
    sweep.check()
    return sweep


def from_texts(texts: Mapping[str, str]) -> Sweep:
    """The sweep whose `texts` these are; they were checked when the sweep began."""
    search = Search.model_validate(yaml.parse_mapping(texts["sweep.yaml"], "search"))
    base = yaml.parse_mapping(texts[BASE_FILE], "recipe")
    return Sweep(search.name or "", base.pop("name"), base, search)
