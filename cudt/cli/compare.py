"""`cudt compare`: two runs next to each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cudt.cli.options import EvaluatedWeights, require_folder
from cudt.cli.terminal import make_console
from cudt.utils.errors import UserError
from cudt.utils.text import as_command

if TYPE_CHECKING:
    from cudt.report.frames import Frames

FirstRun = Annotated[Path, typer.Argument(metavar="A", help="Run folder, the baseline.")]
SecondRun = Annotated[Path, typer.Argument(metavar="B", help="Run folder to compare with it.")]
#: Rows of a comparison that stand for a whole curve.
_OVER_LEVELS = {"auc": "AUC", "mean": "mean", "id_mean": "mean ID", "ood_mean": "mean OOD"}


On = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Test data of `cudt eval-ood --on NAME`.",
        show_default="the runs' own data",
    ),
]


def compare(
    first: FirstRun, second: SecondRun, weights: EvaluatedWeights = None, on: On = None
) -> None:
    """Compare two finished runs: settings, loss, verdict and weight of each layer, and the metric
    at each noise level.

    Differences are B − A. Their 95 % interval is over the test examples, which both runs must
    share.
    """
    for path in (first, second):
        require_folder(path, "run folder")
    if first.resolve() == second.resolve():
        raise UserError(f"run folder '{first}' is given twice: give two different runs to compare")
    from cudt.report import compare as comparing
    from cudt.report import frames
    from cudt.runs.run import OWN

    both = frames.read_two(first, second, weights.value if weights else None, on or OWN)
    comparing.assign(both)
    console = make_console()
    for name, run in zip("AB", frames.each(both.runs), strict=True):
        text = f"{name}  {run.recipe}, {run.objective}, seed {run.seed}: {run.path}"
        console.print(text, soft_wrap=True)
    _print_settings(console, both)
    _print_layers(console, both)
    _print_curves(console, both)


def _print_settings(console: Console, both: Frames) -> None:
    from cudt.config import yaml
    from cudt.config.differences import differing_keys

    names = ("recipe", "objective", "seed", "weights", "data")
    settings = [
        {**{n: run[n] for n in names}, **run["settings"]} for _, run in both.runs.iterrows()
    ]
    if not (keys := differing_keys(settings)):
        console.print("\nno setting differs")
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("setting", "A", "B"):
        table.add_column(column, overflow="fold")
    for key in keys:
        values = (yaml.dump_line(one[key]) if key in one else "" for one in settings)
        table.add_row(key, *values)
    console.print("\nsettings that differ")
    console.print(table)


def _print_layers(console: Console, both: Frames) -> None:
    """Losses and verdicts of both: on validation data, or on test data for weights or data that
    are not a run's own.
    """
    from cudt.method.constraints import FAILING, is_monotone
    from cudt.training.display import NEGATIVE_NOTE, weight_text
    from cudt.utils.text import short_number

    runs = [run for _, run in both.runs.iterrows()]
    on_test = not all(run["is_own"] for run in runs)
    verdicts = [both.test_verdicts(n) if on_test else run["verdicts"] for n, run in enumerate(runs)]
    data = "test" if on_test else "validation"
    console.print(f"\nlayer losses on {data} data at γ_train, and the verdict on each constraint")
    if not all(verdicts):
        console.print("not measured yet; run `cudt eval-ood` on both")
        return
    weights = {f"w {name}": w for name, run in zip("AB", runs, strict=True) if (w := _weights(run))}
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("layer", "A", "B", "B − A", "verdict A", "verdict B", *weights):
        table.add_column(column, justify="left" if column.startswith("verdict") else "right")
    problem = _different_losses(runs)
    found = [{one.layer: one for one in mine} for mine in verdicts]
    for layer in sorted({*found[0], *found[1]}):
        ours = [mine.get(layer) for mine in found]
        difference = ""
        a, b = ours
        if a and b and not problem:
            apart = b.loss - a.loss
            difference = ("+" if apart >= 0 else "") + short_number(apart)
        numbers = (short_number(one.loss) if one else "" for one in ours)
        words = (one.verdict if one else "" for one in ours)
        of_layer = (weight_text(mine.get(layer)) for mine in weights.values())
        table.add_row(str(layer), *numbers, difference, *words, *of_layer)
    console.print(table)
    if problem:
        console.print(f"no differences: {problem}", soft_wrap=True)
    if weights:
        console.print("w: effective weight of the layer's loss, at the end of that epoch")
        if any(value < 0 for mine in weights.values() for value in mine.values()):
            console.print(NEGATIVE_NOTE)
    for name, run, mine in zip("AB", runs, verdicts, strict=True):
        feasible = all(one.verdict not in FAILING for one in mine) if on_test else run["feasible"]
        falls = is_monotone(run["reference"], [one.loss for one in mine])
        text = f"{'feasible' if feasible else 'not feasible'}; {'every' if falls else 'not every'}"
        console.print(f"{name}: {text} layer lowers the loss", highlight=False)


def _weights(run: Any) -> dict[int, float]:
    """w_l by layer at the end of the run's epoch; empty without constraints."""
    import torch

    from cudt.method.constraints import effective_weights

    recorded = getattr(run["multipliers"], run["weights"], None)
    if recorded is None or run["rates"] is None or not run["is_constrained"]:
        return {}
    form, gradient = run["descent"]["form"], run["descent"]["gradient"]
    multipliers = torch.tensor(recorded, dtype=torch.double)
    found = effective_weights(multipliers, run["rates"], form, gradient)
    return dict(enumerate(found.tolist(), 1))


def _different_losses(runs: list[Any]) -> str:
    """Why the losses of two runs have no common unit; empty if they have one."""
    for key in ("name", "loss"):
        a, b = (run["task"].get(key, "") for run in runs)
        if a != b:
            return f"task.{key} is {a} in A and {b} in B, so the losses have different units"
    return ""


def _print_curves(console: Console, both: Frames) -> None:
    runs = [run for _, run in both.runs.iterrows()]
    for name, run in zip("AB", runs, strict=True):
        if not run["noises"]:
            command = as_command("eval-ood", run["path"])
            console.print(f"\n{name} is not evaluated yet; run: {command}", soft_wrap=True)
    metrics = [run["metric"] for run in runs]
    if metrics[0] != metrics[1]:
        differ = f"{metrics[0]} and {metrics[1]}"
        console.print(f"\nthe metrics differ ({differ}), so the curves cannot be compared")
        return
    a, b = (run["noises"] for run in runs)
    kinds = sorted({*a} & {*b})
    if a and b and not kinds:
        console.print(f"\nno noise in common: A has {', '.join(a)}, B has {', '.join(b)}")
    for kind in kinds:
        _print_curve(console, both, kind)


def _print_curve(console: Console, both: Frames, kind: str) -> None:
    """Both curves under one kind of noise, and why there is no interval if there is none."""
    from cudt.config.levels import scale_of
    from cudt.report.paired import Differences, Quantities

    (first, other), curves = (
        (both.row(run) for run in (0, 1)),
        [both.curve(run, kind) for run in (0, 1)],
    )
    problem = _different_tests(both.runs)
    found = {
        (row["quantity"], row.get("gamma")): row for row in Differences(both).rows(kind, [1], [0])
    }
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("level", "A", "B", "B − A", "95 % interval"):
        table.add_column(column, justify="right", no_wrap=True)

    def add(name: str, values: Sequence[float | None], row: dict[str, Any] | None) -> None:
        numbers = ("" if value is None else f"{value:.4f}" for value in values)
        has_interval = row is not None and row["low"] == row["low"] and not problem
        interval = f"{row['low']:+.4f} to {row['high']:+.4f}" if row and has_interval else ""
        table.add_row(name, *numbers, f"{row['difference']:+.4f}" if row else "", interval)

    for level in sorted({*curves[0], *curves[1]}):
        of_level = found.get(("metric", level))
        add(
            f"{scale_of(kind).symbol} = {level:g}", [curve.get(level) for curve in curves], of_level
        )
    shared = sorted({*curves[0]} & {*curves[1]})
    # Which levels are in distribution depends on γ_train.
    same = first.gamma_train == other.gamma_train
    over = {(row["quantity"]): row for row in found.values() if row["quantity"] in _OVER_LEVELS}
    if shared:
        wanted = Quantities.over(shared, kind, first.gamma_train)
        both_sums = [wanted.named([curve[level] for level in shared]) for curve in curves]
        for quantity in _OVER_LEVELS:
            if quantity in over and (same or quantity in ("auc", "mean")):
                values = [sums[quantity] for sums in both_sums]
                add(_OVER_LEVELS[quantity], values, over[quantity])
    console.print(f"\n{first.metric} under {kind} noise on test data")
    console.print(table)
    reasons = dict.fromkeys(row["reason"] for row in found.values() if row["reason"])
    if problem or reasons:
        console.print(f"no interval: {problem or '; '.join(reasons)}", soft_wrap=True)


def _different_tests(runs: Any) -> str:
    """Why two runs have no test examples in common; empty if they may have."""
    if runs["test_data"].iloc[0] and runs["test_data"].nunique() == 1:
        return ""
    # Generated test data have no fingerprint: they follow from the settings of the task, except
    # for its loss.
    a, b = ({key: v for key, v in task.items() if key != "loss"} for task in runs["task"])
    return (
        ""
        if a == b
        else "the runs have different tasks or task settings, and so different test data"
    )
