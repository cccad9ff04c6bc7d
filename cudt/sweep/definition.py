"""A sweep: a recipe, a search file, and the recipe of every run they lead to."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cudt.config import errors, yaml
from cudt.config import recipe as recipes
from cudt.config.errors import Mistake
from cudt.config.levels import parse_levels
from cudt.config.recipe import NamedRecipe
from cudt.sweep import checks, checks_recipe
from cudt.sweep.search import Arm, Range, Scalar, Search, combinations, values_of
from cudt.utils.errors import UserError

#: The searched settings of one run, by key.
Parameters = dict[str, Scalar]
#: The recipe in a sweep's folder, next to its search file.
BASE_FILE = "base.yaml"
#: Characters of a file's name that the sweep's folder keeps.
_LONGEST_NAME = 50


@dataclass(frozen=True)
class Sweep:
    """Settings × arms; each arm has its whole budget of runs in each setting."""

    name: str
    recipe_name: str
    base: dict[str, Any]
    """The recipe as read; it may be incomplete without the settings of the search file."""
    search: Search

    @cached_property
    def values(self) -> dict[str, Any]:
        """The recipe with the search file's `fixed` settings."""
        return changed(self.base, self.search.fixed)

    @cached_property
    def settings(self) -> list[Parameters]:
        """The combinations of compared settings, in the file's order; one empty setting if nothing
        is compared.
        """
        return combinations(self.search.settings)

    def arm(self, name: str) -> Arm:
        return self.search.arms[name]

    def recipe(self, setting: Parameters, arm: str, parameters: Parameters) -> NamedRecipe:
        """The recipe of one run."""
        values = changed(self.values, setting, self.arm(arm).fixed, parameters)
        return NamedRecipe(self.recipe_name, recipes.validate(values, f"{self.name}, arm {arm}"))

    def describe(self, setting: Parameters, arm: str, parameters: Parameters) -> str:
        """One cell in a line, with keys as short as possible: `layers=3, constrained: alpha=0.1,
        seed=2`.
        """
        own = self.spelled(parameters)
        return ", ".join(part for part in (self.spelled(setting), arm) if part) + (
            f": {own}" if own else ""
        )

    def spelled(self, parameters: Parameters) -> str:
        return ", ".join(
            f"{self.short(key)}={_short_value(value)}" for key, value in parameters.items()
        )

    def short(self, key: str) -> str:
        """The shortest end of a key that is unique in the recipe."""
        parts = key.split(".")
        ends = (".".join(parts[-count:]) for count in range(1, len(parts)))
        return next(
            (end for end in ends if sum(_ends_in(other, end) for other in self._keys) <= 1), key
        )

    @cached_property
    def _keys(self) -> list[str]:
        return list(_dotted(self.first_recipe.settings.model_dump(mode="json")))

    @cached_property
    def first_recipe(self) -> NamedRecipe:
        """The recipe of the first arm in the first setting, for what all cells have in common."""
        arm = next(iter(self.search.arms))
        return self.recipe(self.settings[0], arm, self.first_parameters(arm))

    def listed(self, arm: str) -> list[Parameters] | None:
        """All runs of an arm in a setting; None if the sampler draws them one by one."""
        chosen = self.arm(arm)
        if chosen.sampler == "seeds":
            first = self.recipe(self.settings[0], arm, {}).settings.seed
            return [{"seed": first + number} for number in range(chosen.budget or 0)]
        if chosen.sampler == "grid":
            return combinations(
                {key: values_of(searched) for key, searched in chosen.search.items()}
            )
        return None

    def first_parameters(self, arm: str) -> Parameters:
        """The first choice or lowest value of each setting that an arm searches."""
        searched = self.arm(arm).search
        return {
            key: one.ends()[0] if isinstance(one, Range) else one[0]
            for key, one in searched.items()
        }

    def budget(self, arm: str) -> int:
        """Runs of an arm in each setting."""
        return self.arm(arm).runs_per_setting or 0

    @cached_property
    def gammas(self) -> list[float] | None:
        """The noise levels that the score averages over; None for a score at γ_train."""
        if self.search.score.measure != "grid":
            return None
        if self.search.score.gammas is not None:
            return parse_levels(self.search.score.gammas)
        return self.first_recipe.settings.evaluation.grid

    def identity(self) -> str:
        """Eight hex digits over recipe and search, without budgets: a larger budget continues the
        same sweep.
        """
        # Of the evaluation, only the levels of the score matter; they are added below.
        shaping = recipes.shaping_values(self.values)
        search = self.search.model_dump(
            exclude={"name", "reproduces", "recipe", "fixed", "unequal_budgets"}
        )
        for arm in search["arms"].values():
            del arm["budget"]
        search["score"]["gammas"] = self.gammas
        text = json.dumps([self.recipe_name, shaping, search], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def folder(self, out: Path) -> Path:
        return out / "sweeps" / self.recipe_name / f"{self.name}-{self.identity()}"

    def text(self) -> str:
        """The search file of this sweep; its recipe is base.yaml (`base_text`) in the same
        folder.
        """
        search = self.search.model_dump(mode="json", exclude_unset=True, exclude={"name", "recipe"})
        return yaml.dump({"name": self.name, "recipe": BASE_FILE, **search})

    def base_text(self) -> str:
        """The recipe of this sweep as a file that keeps its name."""
        return yaml.dump({"name": self.recipe_name, **self.base})


def setting_name(setting: Parameters) -> str:
    """`model.layers=3, noise.gamma_train=0.8`; empty if nothing is compared."""
    return ", ".join(f"{key}={as_word(value)}" for key, value in setting.items())


def as_word(value: Scalar) -> str:
    """A value as YAML spells it."""
    return value if isinstance(value, str) else json.dumps(value)


def _short_value(value: Scalar) -> str:
    return f"{value:.4g}" if isinstance(value, float) else as_word(value)


def _ends_in(key: str, end: str) -> bool:
    return key == end or key.endswith(f".{end}")


def _dotted(values: dict[str, Any], before: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield from (
            _dotted(value, f"{before}{key}.") if isinstance(value, dict) else [f"{before}{key}"]
        )


def changed(values: dict[str, Any], *changes: dict[str, Any]) -> dict[str, Any]:
    """A copy of a recipe's values with some of them set."""
    copied = copy.deepcopy(values)
    for path, value in itertools.chain.from_iterable(change.items() for change in changes):
        recipes.put(copied, path, copy.deepcopy(value))
    return copied


# ---------------------------------------------------------------- files


def folder() -> Path:
    """The folder of the search files that come with cudt."""
    return recipes.folder() / "sweeps"


def names() -> list[str]:
    return sorted(recipes.files_below(folder()))


def locate(name_or_file: str) -> Path:
    """The path of a search file that comes with cudt, or of the file itself."""
    return recipes.find(name_or_file, folder(), "search")


def load(name_or_file: str, recipe: str | None = None) -> Sweep:
    """A valid sweep, or an error that lists every mistake. `recipe` overrides the recipe that the
    file names.
    """
    path = locate(name_or_file)
    values = recipes.read(path, locate)
    source = f"search {path.stem}"
    try:
        search = Search.model_validate(values)
    except ValidationError as error:
        errors.refuse(source, errors.explain(Search, error))
    recipe_name, base, why = _read_recipe(recipe, search.recipe, path)
    found = [*checks.without_recipe(search), *why]
    if base is not None:
        found += checks_recipe.with_recipe(search, recipe_name, base)
    if found or base is None:
        errors.refuse(source, found)
    return Sweep(search.name or _as_name(path.stem), recipe_name, base, search)


def from_texts(search_text: str, base_text: str) -> Sweep:
    """The sweep whose `text` and `base_text` these are; they were checked when the sweep began."""
    search = Search.model_validate(yaml.parse_mapping(search_text, "search"))
    base = yaml.parse_mapping(base_text, "recipe")
    return Sweep(search.name or "", base.pop("name"), base, search)


def _read_recipe(
    asked: str | None, named: str | None, search_file: Path
) -> tuple[str, dict[str, Any] | None, list[Mistake]]:
    """The recipe's name and values, or why the recipe of `--recipe` or of the search file cannot be
    read.
    """
    if not asked and named is None:
        return (
            "",
            None,
            [Mistake(("recipe",), "missing; name one in the search file, or with --recipe")],
        )
    try:
        name, values = recipes.read_named(
            recipes.locate(asked) if asked else _locate_recipe(named or "", search_file)
        )
    except UserError as error:
        return "", None, [Mistake(("--recipe" if asked else "recipe",), str(error))]
    return name, values, []


def _locate_recipe(named: str, search_file: Path) -> Path:
    """The recipe that a search file names: a file in the same folder, or any other recipe."""
    neighbour = search_file.parent / named
    return neighbour if neighbour.is_file() else recipes.locate(named)


def _as_name(stem: str) -> str:
    """A file's name with characters replaced that a sweep's name may not have."""
    return re.sub(r"[^\w.-]+", "-", stem)[:_LONGEST_NAME].strip("-.") or "search"
