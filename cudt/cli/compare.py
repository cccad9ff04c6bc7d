"""`cudt compare`: two runs next to each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cudt.cli.options import require_folder
from cudt.cli.terminal import make_console
from cudt.utils.errors import UserError
from cudt.utils.shown import as_command

if TYPE_CHECKING:
    import pandas as pd

    from cudt.report.collect import ReadRun

FirstRun = Annotated[Path, typer.Argument(metavar="A", help="Run folder, the baseline.")]
SecondRun = Annotated[Path, typer.Argument(metavar="B", help="Run folder to compare with it.")]
#: Rows of a comparison that stand for a whole curve.
_OVER_LEVELS = {"auc": "AUC", "mean": "mean", "id_mean": "mean ID", "ood_mean": "mean OOD"}


def compare(first: FirstRun, second: SecondRun) -> None:
    """Compare two finished runs: settings, loss, verdict and weight of each layer, and the metric
    at each noise level.

    Differences are B − A. Their 95 % interval is over the test examples, which both runs must
    share.
    """
    for path in (first, second):
        require_folder(path, "run folder")
    if first.resolve() == second.resolve():
        raise UserError(f"run folder '{first}' is given twice: give two different runs to compare")
    a, b = _read(first), _read(second)
    console = make_console()
    for name, run in (("A", a), ("B", b)):
        console.print(
            f"{name}  {run.recipe}, {run.objective}, seed {run.seed}: {run.run.results}",
            soft_wrap=True,
        )
    _print_settings(console, a, b)
    _print_layers(console, a, b)
    _print_curves(console, a, b)


def _read(path: Path) -> ReadRun:
    from cudt.report.collect import read_run
    from cudt.runs.find import open_run

    open_run(path)
    return read_run(path)


# ---------------------------------------------------------------- settings


def _print_settings(console: Console, a: ReadRun, b: ReadRun) -> None:
    from cudt.config import yaml
    from cudt.config.differences import differing_keys

    settings = [_all_settings(run) for run in (a, b)]
    if not (keys := differing_keys(settings)):
        console.print("\nno setting differs")
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("setting", "A", "B"):
        table.add_column(column, overflow="fold")
    for key in keys:
        table.add_row(
            key,
            *(yaml.dump_line(values[key]) if key in values else "" for values in settings),
        )
    console.print("\nsettings that differ")
    console.print(table)


def _all_settings(run: ReadRun) -> dict[str, Any]:
    from cudt.config.differences import flat_settings

    recipe = run.run.recipe
    named = {
        "recipe": recipe.name,
        "objective": run.objective,
        "seed": run.seed,
        "weights": run.run.weights,
    }
    data = {} if run.run.other_data is None else {"test data": run.run.other_data.name}
    return {**named, **data, **flat_settings(recipe)}


# ---------------------------------------------------------------- layers


def _print_layers(console: Console, a: ReadRun, b: ReadRun) -> None:
    """Losses and verdicts of both: on validation data, or on test data for weights or data that are
    not a run's own.
    """
    from cudt.training.picture import negative_note

    on_test = any(run.run.results != run.run.path for run in (a, b))
    verdicts = [_test_verdicts(run) if on_test else _own_verdicts(run) for run in (a, b)]
    data = "test" if on_test else "validation"
    console.print(f"\nlayer losses on {data} data at γ_train, and the verdict on each constraint")
    if not all(verdicts):
        console.print("not measured yet; run `cudt eval-ood` on both")
        return
    weights = _effective_weights(a, b)
    problem = _different_losses(a, b)
    console.print(_layer_table(verdicts, weights, with_differences=not problem))
    if problem:
        console.print(f"no differences: {problem}", soft_wrap=True)
    if weights:
        console.print("w: effective weight of the layer's loss, at the end of that epoch")
        if any(value < 0 for mine in weights.values() for value in mine.values()):
            console.print(negative_note())
    for name, run, mine in zip("AB", (a, b), verdicts, strict=True):
        of_all = _conclusion(run, mine if on_test else {})
        console.print(f"{name}: {of_all}", highlight=False)


def _own_verdicts(run: ReadRun) -> dict[int, tuple[float, str]]:
    """The loss of each layer and the verdict on its constraint, from run.json."""
    return {one.layer: (one.loss, one.verdict) for one in run.info.verdicts}


def _test_verdicts(run: ReadRun) -> dict[int, tuple[float, str]]:
    """The same from constraints.csv; empty before `cudt eval-ood`. run.json knows only the run's
    own weights.
    """
    noise, table = run.run.recipe.settings.noise, run.run.read_table("constraints")
    rows = table[(table["perturbation"] == noise.kind) & (table["gamma"] == noise.gamma_train)]
    columns = (rows[name] for name in ("layer", "loss", "verdict"))
    return {
        int(layer): (float(loss), str(verdict))
        for layer, loss, verdict in zip(*columns, strict=True)
    }


def _layer_table(
    verdicts: list[dict[int, tuple[float, str]]],
    weights: dict[str, dict[int, float]],
    *,
    with_differences: bool,
) -> Table:
    """Losses, verdicts and effective weights."""
    from cudt.training.picture import weight_text
    from cudt.utils.numbers import short_number

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("layer", "A", "B", "B − A", "verdict A", "verdict B", *weights):
        table.add_column(column, justify="left" if column.startswith("verdict") else "right")
    for layer in sorted({layer for mine in verdicts for layer in mine}):
        found = [mine.get(layer) for mine in verdicts]
        losses = [one[0] for one in found if one is not None]
        numbers = ["" if one is None else short_number(one[0]) for one in found]
        words = ["" if one is None else one[1] for one in found]
        signed = ""
        if len(losses) == 2 and with_differences:
            difference = losses[1] - losses[0]
            signed = ("+" if difference >= 0 else "") + short_number(difference)
        table.add_row(
            str(layer),
            *numbers,
            signed,
            *words,
            *(weight_text(mine.get(layer)) for mine in weights.values()),
        )
    return table


def _different_losses(a: ReadRun, b: ReadRun) -> str:
    """Why the losses of two runs have no common unit; empty if they have one."""
    for key in ("name", "loss"):
        values = [getattr(run.run.recipe.settings.task, key, "") for run in (a, b)]
        if values[0] != values[1]:
            return f"task.{key} is {values[0]} in A and {values[1]} in B, so the losses have different units"
    return ""


def _effective_weights(a: ReadRun, b: ReadRun) -> dict[str, dict[int, float]]:
    """w_l by layer of each run that recorded them, by the heading of its column."""
    from cudt.report.effective_weights import weights_at_end

    found = {"w A": weights_at_end(a), "w B": weights_at_end(b)}
    return {heading: weights for heading, weights in found.items() if weights}


def _conclusion(run: ReadRun, on_test: dict[int, tuple[float, str]]) -> str:
    """Whether the run keeps its constraints and every layer helps: on test data, or without these
    as in run.json.
    """
    from cudt.method.constraints import FAILING, is_monotone

    is_feasible, is_falling = run.info.feasible, run.info.monotone
    if on_test:
        is_feasible = all(verdict not in FAILING for _, verdict in on_test.values())
        is_falling = is_monotone(run.reference, [loss for loss, _ in on_test.values()])
    feasible = "feasible" if is_feasible else "not feasible"
    return f"{feasible}; {'every' if is_falling else 'not every'} layer lowers the loss"


# ---------------------------------------------------------------- curves


def _print_curves(console: Console, a: ReadRun, b: ReadRun) -> None:
    for name, run in (("A", a), ("B", b)):
        if not run.curves:
            console.print(
                f"\n{name} is not evaluated yet; run: {as_command('eval-ood', run.run.results)}",
                soft_wrap=True,
            )
    if a.metric != b.metric:
        console.print(
            f"\nthe metrics differ ({a.metric} and {b.metric}), so the curves cannot be compared"
        )
        return
    kinds = sorted({*a.curves} & {*b.curves})
    if a.curves and b.curves and not kinds:
        console.print(
            f"\nno noise in common: A has {', '.join(a.curves)}, B has {', '.join(b.curves)}"
        )
    for kind in kinds:
        _print_curve(console, a, b, kind)


def _print_curve(console: Console, a: ReadRun, b: ReadRun, kind: str) -> None:
    """Both curves under one kind of noise, and why there is no interval if there is none."""
    rows = _differences(a, b, kind)
    console.print(f"\n{a.metric} under {kind} noise on test data")
    console.print(_curve_table(a, b, kind, rows))
    reasons = [reason for reason in dict.fromkeys(rows["reason"]) if reason] if len(rows) else []
    if problem := _different_tests(a, b):
        console.print(f"no interval: {problem}", soft_wrap=True)
    elif reasons:
        console.print(f"no interval: {'; '.join(reasons)}", soft_wrap=True)


def _differences(a: ReadRun, b: ReadRun, kind: str) -> pd.DataFrame:
    """B − A at each level and over all levels, as paired.csv has them."""
    from cudt.report import paired
    from cudt.report.comparable import Pair

    rows = paired.of_pair(Pair(kind, [b], [a]))
    if a.info.gamma_train != b.info.gamma_train:
        # Which levels are in distribution depends on γ_train.
        rows = rows[~rows["quantity"].isin(["id_mean", "ood_mean"])]
    return rows.assign(low=float("nan"), high=float("nan")) if _different_tests(a, b) else rows


def _different_tests(a: ReadRun, b: ReadRun) -> str:
    """Why two runs have no test examples in common; empty if they may have."""
    if a.info.test_data and a.info.test_data == b.info.test_data:
        return ""
    # Generated test data have no fingerprint: they follow from the settings of the task, except for
    # its loss.
    tasks = [run.run.recipe.settings.task.model_dump_json(exclude={"loss"}) for run in (a, b)]
    return (
        ""
        if tasks[0] == tasks[1]
        else "the runs have different tasks or task settings, and so different test data"
    )


def _curve_table(a: ReadRun, b: ReadRun, kind: str, rows: pd.DataFrame) -> Table:
    from cudt.noise import scale_of

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("level", "A", "B", "B − A", "95 % interval"):
        table.add_column(column, justify="right", no_wrap=True)
    by_level = {row["gamma"]: row for row in rows.to_dict("records") if row["quantity"] == "metric"}
    for level in sorted({*a.curves[kind], *b.curves[kind]}):
        found = [_number(run.curves[kind].get(level)) for run in (a, b)]
        table.add_row(
            f"{scale_of(kind).symbol} = {level:g}", *found, *_difference(by_level.get(level))
        )
    for row in rows.to_dict("records"):
        if row["quantity"] in _OVER_LEVELS:
            both = [
                _number(_over_levels(run, kind, row["quantity"], [*by_level])) for run in (a, b)
            ]
            table.add_row(_OVER_LEVELS[row["quantity"]], *both, *_difference(row))
    return table


def _over_levels(run: ReadRun, kind: str, quantity: str, levels: list[float]) -> float:
    """One number for a run's curve over the levels that both runs have."""
    from cudt.evaluation.curves import area_under_curve
    from cudt.noise import distribution

    curve = {level: run.curves[kind][level] for level in levels}
    if quantity == "auc":
        return area_under_curve([*curve], [*curve.values()])
    wanted = {"mean": ("ID", "OOD"), "id_mean": ("ID",), "ood_mean": ("OOD",)}[quantity]
    values = [
        value
        for level, value in curve.items()
        if distribution(kind, level, run.info.gamma_train) in wanted
    ]
    return sum(values) / len(values)


def _difference(row: dict[Any, Any] | None) -> tuple[str, str]:
    if row is None:
        return "", ""
    interval = "" if row["low"] != row["low"] else f"{row['low']:+.4f} to {row['high']:+.4f}"
    return f"{row['difference']:+.4f}", interval


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
