"""A sweep: a recipe, a search file, and the recipe of every run they lead to."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cudt.config import errors, plugins, yaml
from cudt.config import recipe as recipes
from cudt.config.errors import Mistake
from cudt.config.levels import parse_levels
from cudt.config.recipe import NamedRecipe
from cudt.sweep.search import Arm, Scalar, Search, Settings, combinations, mistakes
from cudt.utils.errors import UserError

#: The recipe in a sweep's folder, next to its search file.
BASE_FILE = "base.yaml"


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
        return int(self.search.arms[arm].runs_per_setting)

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
        return NamedRecipe(self.recipe_name, recipes.validate(values, f"{self.name}, arm {arm}"))

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
        return self.first_recipe.settings.evaluation.grid

    def identity(self) -> str:
        """Eight hex digits over recipe and search, without budgets: a larger budget continues the
        same sweep.
        """
        # Of the evaluation, only the levels of the score matter; they are added below.
        shaping = recipes.shaping_values(self.values())
        search = self.search.model_dump(
            exclude={"name", "reproduces", "recipe", "fixed", "unequal_budgets"}
        )
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

    def describe(self, setting: Settings, arm: str, own: Settings) -> str:
        """One run in a line, like `model.layers=3, erm: seed=0`."""
        words = [
            ", ".join(
                f"{key}={one:.4g}" if isinstance(one, float) else f"{key}={as_word(one)}"
                for key, one in settings.items()
            )
            for settings in (setting, own)
        ]
        return ": ".join(filter(None, [", ".join(filter(None, [words[0], arm])), words[1]]))


def setting_name(setting: Settings) -> str:
    """`model.layers=3, noise.gamma_train=0.8`; empty if nothing is compared."""
    return ", ".join(f"{key}={as_word(value)}" for key, value in setting.items())


def as_word(value: Scalar) -> str:
    """A value as YAML spells it."""
    return value if isinstance(value, str) else json.dumps(value)


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
    """A valid sweep, or an error that lists every mistake. `recipe` overrides the file's own."""
    path = locate(name_or_file)
    values, source = recipes.read(path, locate), f"search {path.stem}"
    try:
        search = Search.model_validate(values)
    except ValidationError as error:
        errors.refuse(source, errors.explain(Search, error))
    named = recipe or search.recipe
    if named is None:
        errors.refuse(source, ["recipe: missing; name one in the search file, or with --recipe"])
    try:
        is_neighbour = recipe is None and (path.parent / named).is_file()
        recipe_name, base = recipes.read_named(
            path.parent / named if is_neighbour else recipes.locate(named)
        )
    except UserError as error:
        errors.refuse(source, [f"{'--recipe' if recipe else 'recipe'}: {error}"])
    own = re.sub(r"[^\w.-]+", "-", path.stem)[:50].strip("-.") or "search"
    sweep = Sweep(search.name or own, recipe_name, base, search)
    if found := [*mistakes(search)] or [*_of_recipes(sweep)]:
        errors.refuse(source, found)
    return sweep


def from_texts(texts: Mapping[str, str]) -> Sweep:
    """The sweep whose `texts` these are; they were checked when the sweep began."""
    search = Search.model_validate(yaml.parse_mapping(texts["sweep.yaml"], "search"))
    base = yaml.parse_mapping(texts[BASE_FILE], "recipe")
    return Sweep(search.name or "", base.pop("name"), base, search)


# ---------------------------------------------------------------- checks against the recipe


def _of_recipes(sweep: Sweep) -> Iterator[Mistake]:
    """The mistakes of the recipes: each choice and each end of a range is tried with the first of
    the others, and a mistake is reported where it first appears.
    """
    seen, compared = set[str](), sweep.search.settings
    for name, arm in sweep.search.arms.items():
        own: tuple[str, ...] = ("arms", name)
        tried: list[tuple[tuple[str, ...], Settings]] = [(own, {})]
        tried += [(own, {key: one}) for key, every in arm.probes.items() for one in every[1:]]
        tried += [(("settings",), {key: one}) for key, every in compared.items() for one in every]
        for path, change in tried:
            values = sweep.values(sweep.settings[0], arm.fixed, arm.first, change)
            for mistake in recipes.check(values)[1]:
                if str(mistake) not in seen:
                    seen.add(str(mistake))
                    yield Mistake(path, str(mistake))
        yield from (Mistake((*own, *key), why) for key, why in _without_effect(sweep, arm))
    for key in compared:
        if not recipes.shaping_values({key: 0}):
            yield Mistake(("settings", key), "does not affect training; its runs would be the same")


def _without_effect(sweep: Sweep, arm: Arm) -> Iterator[tuple[tuple[str, ...], str]]:
    """Searched keys of which every value is the same run."""
    values = sweep.values(sweep.settings[0], arm.fixed, arm.first)
    objectives = arm.search.get("objective", sweep.search.settings.get("objective"))
    named = objectives if isinstance(objectives, list) else [values.get("objective")]
    known = [one for one in map(str, named) if not plugins.problem("objective", one)]
    free = [one for one in known if not plugins.has("objective", one, "is_constrained")]
    is_free = free and (len(free) == len(known) or "objective" not in arm.search)
    for key in arm.search:
        if not recipes.shaping_values({key: 0}):
            yield ("search", key), "does not affect training; its runs would be the same"
        # `descent.form` applies to every objective.
        elif is_free and key.startswith("descent.") and key != "descent.form":
            what = " and ".join(sorted(free))
            yield ("search", key), f"ignored by objective {what}; its runs would be the same"
