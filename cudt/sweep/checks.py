"""Checks of a search file that the schema cannot express and that need no recipe (those are in
checks_recipe.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from cudt.config.errors import Mistake
from cudt.config.recipe import name_problem
from cudt.sweep.search import Arm, Range, Scalar, Search, as_equal
from cudt.utils.text import shown

#: More cells of a grid, or combinations of settings, are taken for a typing error.
_MAX_CELLS = 10_000


def without_recipe(search: Search) -> Iterator[Mistake]:
    """The mistakes that do not depend on the recipe."""
    for name in search.arms:
        yield from _name(name)
    yield from _score(search)
    yield from _settings(search)
    for name, arm in search.arms.items():
        yield from _arm(name, arm, search)
    yield from _budgets(search)


def _name(arm: str) -> Iterator[Mistake]:
    if not re.fullmatch(r"\w[\w.-]*", arm) or name_problem(arm):
        message = (
            "invalid arm name: use at most 100 letters, digits, '_', '-' and '.', it names a file"
        )
        yield _mistake("arms", arm, message=message)
    if arm == "recipe":
        yield _mistake("arms", arm, message="invalid arm name: reserved for the sweep's own files")


def _score(search: Search) -> Iterator[Mistake]:
    score = search.score
    if score.gammas is not None and score.measure != "grid":
        yield _mistake(
            "score", "gammas", message=f"only allowed with measure: grid, not with {score.measure}"
        )
    if score.measure == "grid" and score.gammas is None:
        for name, arm in search.arms.items():
            section = arm.fixed.get("evaluation")
            if "evaluation.gammas" in arm.fixed or (
                isinstance(section, dict) and "gammas" in section
            ):
                message = "the arms would be scored on different grids; set score.gammas, which applies to all arms"
                yield _mistake("arms", name, "fixed", "evaluation.gammas", message=message)


def _settings(search: Search) -> Iterator[Mistake]:
    for key, choices in search.settings.items():
        yield from _repeated(("settings", key), choices)
        if key in search.fixed:
            yield _mistake("settings", key, message="also set in fixed; remove one of them")
    if (count := math.prod(len(choices) for choices in search.settings.values())) > _MAX_CELLS:
        yield _mistake(
            "settings", message=f"{count:,} combinations; at most {_MAX_CELLS:,} are allowed"
        )


def _arm(name: str, arm: Arm, search: Search) -> Iterator[Mistake]:
    path = ("arms", name)
    for key, searched in arm.search.items():
        yield from _searched((*path, "search", key), arm, searched)
        others = {
            "settings": search.settings,
            "fixed": search.fixed,
            f"arms.{name}.fixed": arm.fixed,
        }
        for other in (other for other, keys in others.items() if key in keys):
            yield _mistake(*path, "search", key, message=f"also set in {other}; remove one of them")
    for key in arm.fixed:
        if key in search.settings:
            yield _mistake(*path, "fixed", key, message="also set in settings; remove one of them")
    if arm.sampler == "seeds" and "seed" in search.settings:
        message = "sampler seeds sets the seed, which is also set in settings; remove one of them"
        yield _mistake(*path, "sampler", message=message)
    yield from _sampler(path, arm)
    yield from _pruner(path, arm)
    if arm.search:
        yield from _size(path, arm)


def _searched(path: tuple[str, ...], arm: Arm, searched: Range | list[Scalar]) -> Iterator[Mistake]:
    if not isinstance(searched, Range):
        yield from _repeated(path, searched)
        return
    yield from (_mistake(*path, message=message) for message in searched.mistakes())
    if arm.sampler == "grid" and searched.is_continuous:
        yield _mistake(
            *path,
            message="a grid cannot have a continuous range; list the values, or give it a step",
        )


def _sampler(path: tuple[str, ...], arm: Arm) -> Iterator[Mistake]:
    """Whether the arm has what its sampler needs."""
    if arm.sampler == "seeds" and arm.search:
        message = "sampler seeds varies only the seed; to search more, use sampler grid with seed: [0, 1, 2]"
        yield _mistake(*path, "search", message=message)
    if arm.sampler != "seeds" and not arm.search:
        yield _mistake(
            *path, "search", message=f"missing; sampler {arm.sampler} needs settings to search"
        )
    if arm.sampler != "grid" and arm.budget is None:
        yield _mistake(*path, "budget", message="missing; set the number of runs")


def _pruner(path: tuple[str, ...], arm: Arm) -> Iterator[Mistake]:
    """Whether the arm's runs can be compared after the same number of epochs, and any of them
    ended.
    """
    if arm.pruner is None:
        return
    if "training.epochs" in arm.search:
        message = "compares runs after the same number of epochs, so training.epochs cannot be searched; remove one"
        yield _mistake(*path, "pruner", message=message)
    if (runs := arm.runs_per_setting) is not None and arm.pruner.min_finished >= runs:
        message = f"no run could be ended early: expected fewer than the arm's {runs} runs"
        yield Mistake(
            (*path, "pruner", "min_finished"), f"{message}, got {arm.pruner.min_finished}"
        )


def _size(path: tuple[str, ...], arm: Arm) -> Iterator[Mistake]:
    """Whether the budget fits the number of combinations."""
    count = arm.n_combinations
    if count is None:
        return
    if arm.sampler in ("tpe", "random") and (arm.budget or 0) > count:
        message = f"expected at most {count}, the number of combinations (or use a grid, or ranges)"
        yield Mistake((*path, "budget"), f"{message}, got {arm.budget}")
    if arm.sampler == "grid" and count > _MAX_CELLS:
        message = f"a grid of {count:,} combinations; at most {_MAX_CELLS:,} are allowed, use sampler random instead"
        yield _mistake(*path, "search", message=message)
    elif arm.sampler == "grid" and arm.budget not in (None, count):
        yield Mistake(
            (*path, "budget"),
            f"expected {count}, the number of combinations of the grid, or no budget, got "
            f"{arm.budget}",
        )


def _repeated(path: tuple[str, ...], choices: list[Scalar]) -> Iterator[Mistake]:
    seen = set()
    for value in choices:
        if as_equal(value) in seen:
            yield _mistake(*path, message=f"{shown(value)} is listed twice")
        seen.add(as_equal(value))


def _budgets(search: Search) -> Iterator[Mistake]:
    found = {name: arm.runs_per_setting for name, arm in search.arms.items()}
    known = {name: runs for name, runs in found.items() if runs is not None}
    if len(set(known.values())) > 1 and search.unequal_budgets is None:
        budgets = ", ".join(f"{name} {runs}" for name, runs in known.items())
        message = (
            f"unequal budgets ({budgets} runs): the best of more runs is better by chance alone; "
            "make them equal, or give the reason in unequal_budgets"
        )
        yield _mistake("arms", message=message)
    if (
        search.unequal_budgets is not None
        and len(known) == len(found)
        and len(set(known.values())) == 1
    ):
        yield _mistake("unequal_budgets", message="the budgets are equal; remove this key")


def _mistake(*path: str, message: str) -> Mistake:
    return Mistake(path, message)
