"""Checks of a search file against its recipe: every value that the search can draw must be valid
there.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cudt.config import plugins
from cudt.config import recipe as recipes
from cudt.config.errors import Mistake
from cudt.config.recipe import NamedRecipe
from cudt.method.objectives import objective_class
from cudt.sweep.search import Arm, Range, Scalar, Search, as_equal

#: A mistake's path, and its kind or message.
Fingerprint = tuple[tuple[str | int, ...], str]


@dataclass
class _Tried:
    """An arm whose cells are checked against the recipe."""

    name: str
    arm: Arm
    base: dict[str, Any]
    """The recipe with the file's `fixed` settings."""
    centre: dict[str, Any]
    """The first setting, the arm's fixed values, and the first value of each searched key."""
    left_out: list[str]
    """Keys with an invalid range, which are not in the centre."""
    seen: set[Fingerprint] = field(default_factory=set)
    """Errors that are reported already."""

    @property
    def path(self) -> tuple[str, ...]:
        return ("arms", self.name)

    def refused(self, changes: dict[str, Any]) -> list[Mistake]:
        """The errors of a cell's recipe, except those that follow from the keys that are left
        out.
        """
        found = _refused(self.base, {**self.centre, **changes})
        return [
            mistake
            for mistake in found
            if not any(_contains(mistake.key, key) for key in self.left_out)
        ]


def with_recipe(search: Search, name: str, values: dict[str, Any]) -> Iterator[Mistake]:
    """The errors of a search's recipes: each end of a range and each choice is tried with the first
    of the others.

    Settings can depend on each other, so fixed and searched settings are checked together; and the
    recipe with both, because it may be incomplete without them.
    """
    base, clashes = _with(values, search.fixed)
    yield from (_at(("fixed",), clash) for clash in clashes)
    first = {key: choices[0] for key, choices in search.settings.items()}
    arms = list(_to_be_tried(search, base, first))
    seen: set[Fingerprint] = set()
    in_all = set.intersection(*(set(one.refused({})) for one in arms))
    for path, tried in (
        (f"recipe {name}", (values, {})),
        ("fixed", (base, {})),
        ("settings", (base, first)),
    ):
        yield from _new(
            seen, (path,), [mistake for mistake in _refused(*tried) if mistake in in_all]
        )
    for one in arms:
        one.seen |= seen
        yield from _tried_alone(one, name)
        yield from _ignored_by_objective(one, search)
        yield from _never_prunes(one)
    yield from _tried_settings(arms, search, name)


def _contains(outer: str, inner: str) -> bool:
    """Whether a dotted key is another one, or a section that contains it."""
    return inner == outer or inner.startswith(f"{outer}.")


def _to_be_tried(
    search: Search, base: dict[str, Any], first: dict[str, Scalar]
) -> Iterator[_Tried]:
    for name, arm in search.arms.items():
        left_out = [key for key, searched in arm.search.items() if not _probes(searched)]
        searched = {key: found[0] for key, one in arm.search.items() if (found := _probes(one))}
        yield _Tried(name, arm, base, {**first, **arm.fixed, **searched}, left_out)


def _probes(searched: Range | list[Scalar]) -> list[Scalar]:
    if not isinstance(searched, Range):
        return list(searched)
    return [] if searched.mistakes() else searched.ends()


def _tried_alone(one: _Tried, name: str) -> Iterator[Mistake]:
    """The errors of an arm's centre, and of each other value of each searched key."""
    yield from _new(one.seen, one.path, one.refused({}), one.arm)
    for key, searched in one.arm.search.items():
        values = _probes(searched)
        for value in values[1:]:
            yield from _new(one.seen, one.path, one.refused({key: value}), one.arm)
        if _says_nothing(one, key, values, name):
            yield Mistake(
                one.path,
                f"{key} does not affect training: every value would be the same run",
            )


def _tried_settings(arms: list[_Tried], search: Search, name: str) -> Iterator[Mistake]:
    """The errors of each other value of each setting."""
    seen = {fingerprint for one in arms for fingerprint in one.seen}
    for key, values in search.settings.items():
        for one in arms:
            for value in values[1:]:
                yield from _new(seen, ("settings",), one.refused({key: value}))
        if _says_nothing(arms[0], key, values, name):
            yield Mistake(
                ("settings",),
                f"{key} does not affect training: every value would be the same run",
            )
    for one in arms:
        one.seen |= seen


def _ignored_by_objective(one: _Tried, search: Search) -> Iterator[Mistake]:
    """Settings of the constraints that are searched under an objective without constraints.

    `descent.form` is not one of them: it applies to every objective.
    """
    own = one.arm.fixed.get("objective", one.base.get("objective"))
    objectives = one.arm.search.get("objective", search.settings.get("objective", [own]))
    if isinstance(objectives, Range):
        return
    known = [
        name
        for name in objectives
        if isinstance(name, str) and not plugins.problem("objective", name)
    ]
    free = sorted(name for name in known if not objective_class(name).is_constrained)
    if "objective" in one.arm.search and len(free) < len(known):
        return
    if free:
        for key in (
            key for key in one.arm.search if key.startswith("descent.") and key != "descent.form"
        ):
            message = (
                f"ignored by objective {' and '.join(free)}, so its runs would all be the same"
            )
            yield Mistake((*one.path, "search", key), message)


def _never_prunes(one: _Tried) -> Iterator[Mistake]:
    """A pruner whose first decision would come after the last epoch, when runs are finished."""
    recipe = recipes.check(_with(one.base, one.centre)[0])[0]
    if one.arm.pruner is None or recipe is None:
        return
    epochs, first = recipe.training.epochs, one.arm.pruner.warmup_epochs + 1
    if first >= epochs:
        message = f"no run could be ended early: training.epochs is {epochs}, expected at least {first + 1}"
        yield Mistake((*one.path, "pruner"), message)


def _new(
    seen: set[Fingerprint], path: tuple[str, ...], found: list[Mistake], arm: Arm | None = None
) -> Iterator[Mistake]:
    """The mistakes that were not reported before, at the part of the search file that leads to
    them.
    """
    for mistake in found:
        if (fingerprint := _fingerprint(mistake)) not in seen:
            seen.add(fingerprint)
            yield _at(path, mistake, "" if arm is None else _hint(mistake, arm))


def _at(path: tuple[str, ...], mistake: Mistake, hint: str = "") -> Mistake:
    """A mistake of a recipe as one of the search file."""
    return Mistake(path, f"{mistake}{hint}")


def _fingerprint(mistake: Mistake) -> Fingerprint:
    """The mistake without its value: an unknown key is one error, whatever its value."""
    is_named = mistake.kind not in ("", "value_error")
    return mistake.path, mistake.kind if is_named else mistake.message


def _hint(mistake: Mistake, arm: Arm) -> str:
    """How to search integers, for a range of floats where the recipe expects an integer."""
    searched = arm.search.get(mistake.key)
    is_float = isinstance(searched, Range) and searched.type == "float"
    return "; give the range type: int" if is_float and mistake.kind.startswith("int_") else ""


def _refused(base: dict[str, Any], changes: dict[str, Any]) -> list[Mistake]:
    tried, clashes = _with(base, changes)
    return clashes + recipes.check(tried)[1]


def _with(values: dict[str, Any], changes: dict[str, Any]) -> tuple[dict[str, Any], list[Mistake]]:
    """The recipe with the changes that can be made, and why the others cannot."""
    changed = copy.deepcopy(values)
    for path, value in changes.items():
        recipes.put(changed, path, copy.deepcopy(value))
    return changed, []


def _says_nothing(one: _Tried, key: str, values: list[Scalar], name: str) -> bool:
    """Whether the valid values of a key, at least two, lead to the same run."""
    runs = [(value, run) for value in values if (run := _run(one, key, value, name)) is not None]
    return len({as_equal(value) for value, _ in runs}) > 1 and len({run for _, run in runs}) == 1


def _run(one: _Tried, key: str, value: Scalar, name: str) -> str | None:
    """The run that a value leads to, alone or, if it depends on others, with them."""
    for changes in ({key: value}, {**one.centre, key: value}):
        tried, clashes = _with(one.base, changes)
        recipe = recipes.check(tried)[0]
        if recipe is not None and not clashes:
            return NamedRecipe(name, recipe).identity()
    return None
