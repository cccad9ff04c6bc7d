"""Which runs may be compared: the one definition that every table, figure and comparison of a
report uses.

Runs are comparable if they share a cell: recipe, metric, number of layers, γ_train, the task's
settings, the pretrained model, the epoch whose weights count (training.select) and the test data.
Runs of one group differ in nothing but their seed; a cell holds groups of several objectives. A
chart shows the cells of one family: depth, γ_train and the settings of the task may differ, the
test data and the loss f may not, since losses of different kinds have different units.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cudt.config.differences import names_apart
from cudt.config.schema import Weights
from cudt.report.collect import GroupKey, ReadRun
from cudt.report.objectives import BASELINE, is_constrained

#: The paper's objective, and both sides of its tables in their order.
CONSTRAINED = "constrained"
SIDES = (CONSTRAINED, BASELINE)
#: The settings that make another kind of constraint, with the value of the paper.
PAPER_KIND = {"descent.form": "linear", "descent.gradient": "full", "descent.decay": "coupled"}


@dataclass(frozen=True, order=True)
class ComparableCell:
    """What runs must share to be compared; also a cell of the paper's tables."""

    model: str
    """The recipe; in a table of the paper, the name of the model."""
    metric: str
    layers: int
    gamma_train: float
    dataset: str
    """The name of the task; in a table of the paper, of the data set."""
    task: str = ""
    """The task's settings as JSON; empty in a table of the paper, whose recipes fix them."""
    weights: Weights = "best"
    """The weights that were evaluated: of the best or of the last epoch (training.select)."""
    origin: str = ""
    """What sets its family apart, as JSON; empty in a table of the paper."""
    loss: str = ""
    """The task's loss f (task.loss), where it is not the default."""

    def __str__(self) -> str:
        return f"{self.model} on {self.dataset}, L = {self.layers}, γ_train = {self.gamma_train:g}{self.apart}"

    @property
    def apart(self) -> str:
        """What is unlike the default in the loss and the evaluated weights, after a comma; empty if
        nothing is.
        """
        loss = f", {self.loss.replace('_', ' ')} loss" if self.loss else ""
        return loss + (", last epoch" if self.weights == "last" else "")


def cell_of(run: ReadRun) -> ComparableCell:
    """The cell of a run, by its recipe."""
    task = run.run.tested_task
    origin = json.dumps(_origin(run))
    shared = (
        run.recipe,
        run.metric,
        run.n_layers,
        run.gamma_train,
        task.name,
        task.model_dump_json(),
    )
    loss = _loss(run)
    named = loss if loss is not None and loss != type(task).model_fields["loss"].default else ""
    return ComparableCell(*shared, run.run.weights, origin, named)


def _origin(run: ReadRun) -> dict[str, Any]:
    """The pretrained model, the loss, the weights that count, and the test data, by setting."""
    return {
        "model.pretrained": run.pretrained,
        "task.loss": _loss(run),
        "training.select": run.run.weights,
        "test data": run.edition,
    }


def _loss(run: ReadRun) -> str | None:
    """The task's loss f; None for tasks with one loss only."""
    return getattr(run.run.recipe.settings.task, "loss", None)


def families(runs: Iterable[ReadRun]) -> dict[str, list[ReadRun]]:
    """The runs that charts may show together, by the recipe's name and, where a recipe has several,
    what sets it apart.

    A family shares recipe, metric, pretrained model, loss, selected weights and test data.
    """
    found: dict[str, dict[tuple[str, str], list[ReadRun]]] = {}
    for run in runs:
        key = (run.metric, json.dumps(_origin(run)))
        found.setdefault(run.recipe, {}).setdefault(key, []).append(run)
    named = {}
    for recipe, mine in found.items():
        told = [{"metric": metric, **json.loads(origin)} for metric, origin in mine]
        texts = names_apart(_with_tasks(told, [*mine.values()]))
        for text, members in zip(texts, mine.values(), strict=True):
            named[f"{recipe}, {text}" if text else recipe] = members
    return named


def _with_tasks(
    origins: Sequence[dict[str, Any]], parts: Sequence[Sequence[ReadRun]]
) -> list[dict[str, Any]]:
    """The origins; where the settings of the task make the test data differ, with these in place of
    a number.
    """
    shared = [_shared_task(runs) for runs in parts]
    tasks = [
        {key: value for key, value in one.items() if all(key in each for each in shared)}
        for one in shared
    ]
    editions = {origin["test data"] for origin in origins}
    if len(editions) < 2 or any(one in tasks[:index] for index, one in enumerate(tasks)):
        return [*origins]
    return [
        {**origin, "test data": "", **task} for origin, task in zip(origins, tasks, strict=True)
    ]


def _shared_task(runs: Sequence[ReadRun]) -> dict[str, Any]:
    """The settings of the task that all runs have in common."""
    first, *others = (
        {key: value for key, value in run.settings.items() if key.startswith("task.")}
        for run in runs
    )
    return {
        key: value for key, value in first.items() if all(one.get(key) == value for one in others)
    }


def by_cell(
    runs: Iterable[ReadRun], key: Callable[[ReadRun], ComparableCell] = cell_of
) -> dict[ComparableCell, list[ReadRun]]:
    """The comparable runs of each cell, cells in order."""
    cells: dict[ComparableCell, list[ReadRun]] = {}
    for run in runs:
        cells.setdefault(key(run), []).append(run)
    return dict(sorted(cells.items()))


def by_group(runs: Iterable[ReadRun]) -> dict[GroupKey, list[ReadRun]]:
    """The runs of each group: those that differ in nothing but their seed."""
    groups: dict[GroupKey, list[ReadRun]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    return groups


def without_ablations(runs: Sequence[ReadRun], ablated: set[str]) -> list[ReadRun]:
    """Leave out the runs of ablations where other runs of the same cell and objective exist.

    An ablation varies one setting on purpose: its runs must not join the search that the paper's
    tables choose from.
    """
    searched = {(cell_of(run), run.objective) for run in runs if run.name not in ablated}
    return [
        run
        for run in runs
        if run.name not in ablated or (cell_of(run), run.objective) not in searched
    ]


# ---------------------------------------------------------------- pairs with the baseline


@dataclass(frozen=True)
class Pair:
    """The evaluated runs of a group and of the baseline group it is compared with, under one kind
    of noise.
    """

    noise: str
    ours: list[ReadRun]
    baseline: list[ReadRun]

    @property
    def gamma_train(self) -> float:
        return self.ours[0].gamma_train


def pairs(runs: Sequence[ReadRun]) -> list[Pair]:
    """Each group with each group of its cell that it is compared with, for each noise both were
    evaluated under.

    Every other objective is compared with ERM, and the constrained ones also with every
    unconstrained one. Runs that were not evaluated under that noise are left out.
    """
    return [pair for mine in by_cell(runs).values() for pair in _pairs_of_cell(mine)]


def _pairs_of_cell(runs: Sequence[ReadRun]) -> list[Pair]:
    evaluated = [(group[0].objective, _by_noise(group)) for group in by_group(runs).values()]
    return [
        Pair(noise, ours, baseline[noise])
        for objective, by_noise in evaluated
        for noise, ours in sorted(by_noise.items())
        for other, baseline in evaluated
        if noise in baseline and _is_compared(objective, other)
    ]


def _is_compared(objective: str, other: str) -> bool:
    if other == BASELINE:
        return objective != BASELINE
    return is_constrained(objective) and not is_constrained(other)


def _by_noise(runs: Sequence[ReadRun]) -> dict[str, list[ReadRun]]:
    """The runs that were evaluated under each kind of noise."""
    found: dict[str, list[ReadRun]] = {}
    for run in runs:
        for noise in run.ood["perturbation"].unique():
            found.setdefault(str(noise), []).append(run)
    return found


# ---------------------------------------------------------------- constrained against the baseline


def matches(runs: Sequence[ReadRun]) -> list[list[ReadRun]]:
    """The runs of each comparison of constrained with ERM: in each cell, by ERM's settings and the
    kind of constraints.

    ERM may have model settings of its own (the paper's unconstrained DUST shares one dictionary
    between layers). It is compared with the constrained runs of the same `matched_settings`, or
    with all of the cell where there are none. Kinds of constraints (ladder, proxy, …) are other
    methods, so each is compared on its own, with all of its seeds. So are settings that a sweep
    repeats on several seeds: nothing was chosen among them.
    """
    return [match for mine in by_cell(runs).values() for match in _matches_of_cell(mine)]


def _matches_of_cell(runs: Sequence[ReadRun]) -> list[list[ReadRun]]:
    constrained, baseline = ([run for run in runs if run.objective == side] for side in SIDES)
    found = []
    for matched in dict.fromkeys(map(matched_settings, baseline)):
        like = [run for run in constrained if matched_settings(run) == matched] or constrained
        erm = [run for run in baseline if matched_settings(run) == matched]
        for method in dict.fromkeys(map(_method, like)):
            found.append([*(run for run in like if _method(run) == method), *erm])
    return found


def _method(run: ReadRun) -> tuple[str, GroupKey | None]:
    """The kind of a run's constraints; and its group, if its settings were not chosen among
    others.
    """
    return constraint_kind(run), run.group if run.is_repeated else None


def model_settings(run: ReadRun) -> str:
    """The settings of a run's model, as JSON."""
    return run.run.recipe.settings.model.model_dump_json()


def matched_settings(run: ReadRun) -> tuple[str, int | None]:
    """What both sides of a comparison share where they can: the settings of the model, and the
    number of epochs.

    Epochs count where a sweep repeats settings on several seeds; elsewhere they may be what a
    search chose.
    """
    return model_settings(run), run.run.recipe.settings.training.epochs if run.is_repeated else None


def constraint_kind(run: ReadRun) -> str:
    """What is unlike the paper in the kind of a run's constraints, like `ladder` or `proxy,
    decoupled`.

    Empty for the paper's kind and for objectives without constraints. It is the same word in every
    recipe, for figures of several recipes, where the names of variants would differ.
    """
    if not is_constrained(run.objective):
        return ""
    found = {key: run.settings.get(key, usual) for key, usual in PAPER_KIND.items()}
    return ", ".join(str(found[key]) for key, usual in PAPER_KIND.items() if found[key] != usual)
