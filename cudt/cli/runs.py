"""`cudt runs`: a table of runs; `cudt compare`: two runs next to each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cudt.cli import options
from cudt.utils.errors import UserError
from cudt.utils.text import as_command

if TYPE_CHECKING:
    from cudt.report.frames import Frames

#: The columns of the table; `--csv` prints all.
_SHOWN = ["run", "variant", "seed", "status", "score", "OOD", "verdict", "n"]
_LEGEND = (
    "score: on validation data at γ_train · OOD: mean over higher levels, on test data\n"
    "verdict: feasible (keeps every constraint, up to two standard errors over n validation\n"
    "examples or clips; --strict: without them), monotone (every layer lowers the loss)"
)
#: Rows of a comparison that stand for a whole curve.
_OVER_LEVELS = {"auc": "AUC", "mean": "mean", "id_mean": "mean ID", "ood_mean": "mean OOD"}


# ---------------------------------------------------------------- cudt runs


def runs(
    folder: options.Folders = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print all columns as CSV.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Feasible without a margin of two standard errors.")
    ] = False,
) -> None:
    """List runs: what sets each one apart, seed, status, scores and verdict."""
    import pandas as pd

    from cudt.config.differences import names_apart
    from cudt.runs.run import find_runs

    rows = []
    for path in find_runs(folder or [Path("outputs")]):
        try:
            rows.append(_row(path, strict=strict))
        except (UserError, OSError) as error:
            options.say(f"warning: {error}", stderr=True)
    if not rows:
        options.say("no runs")
        return
    listed = pd.DataFrame(rows).assign(variant="")
    for _, settings in listed.groupby(["recipe", "objective"])["settings"]:
        listed.loc[settings.index, "variant"] = names_apart([*settings])
    if as_csv:
        typer.echo(listed.drop(columns="settings").to_csv(index=False), nl=False)
        return
    for recipe, mine in listed.groupby("recipe", sort=False):
        metrics, models = ("/".join(mine[name].unique()) for name in ("metric", "model"))
        options.say(f"{recipe}: {models} {metrics}")
        numbers = mine[["score", "OOD"]].map(lambda one: f"{one:.4g}" if one == one else "")
        options.print_table(mine.assign(**numbers)[_SHOWN], left=["run", "variant", "status"])
    options.say(_LEGEND)


def _row(path: Path, *, strict: bool) -> dict[str, Any]:
    from cudt.config import yaml
    from cudt.config.differences import flat_values, short_path
    from cudt.runs.run import RunFolder

    # The recipe is not validated: a run stays listed if its model is not installed here.
    folder = RunFolder(path)
    info = folder.info()
    values = yaml.parse_mapping(folder.read("recipe.yaml").decode(), f"{path}/recipe.yaml")
    settings, model = flat_values(values), values["model"]
    is_met = all(one.violation <= 0 for one in info.verdicts or ())
    verdicts = {"feasible": info.feasible and (is_met or not strict), "monotone": info.monotone}
    verdict = ", ".join(word for word, is_so in verdicts.items() if is_so) or "neither"
    score, ood = _scores(folder, settings, info.gamma_train or 0.0)
    return {
        **{name: values[name] for name in ("recipe", "objective", "seed") if name in values},
        "recipe": values["name"],
        "run": path.name,
        "model": short_path(str(model.get("pretrained") or model["name"])),
        "status": info.status or "not started",
        "metric": info.metric.name if info.metric else "",
        "score": score,
        "OOD": ood,
        "verdict": "" if info.feasible is None else verdict,
        "n": info.judged_on or "",
        "begun": info.begun,
        "path": path,
        "settings": settings,
    }


def _scores(folder: Any, settings: dict[str, Any], gamma_train: float) -> tuple[float, float]:
    """The metric on validation data, and its mean above γ_train on test data under the noise of
    training.
    """
    from cudt.config.levels import distribution
    from cudt.runs.run import OWN

    kind, weights = settings["noise.kind"], settings["training.select"]
    layers, ood = folder.read_table("layers"), folder.read_table("ood")
    validation = layers[layers["split"] == "validation"].sort_values("layer")["metric"]
    ood = ood[(ood["split"] == "test") & (ood["data"] == OWN) & (ood["weights"] == weights)]
    curve = ood[ood["noise"] == kind].groupby("gamma")["value"].mean()
    above = [distribution(kind, level, gamma_train) == "OOD" for level in curve.index]
    return float(validation.iloc[-1]) if len(validation) else float("nan"), curve[above].mean()


# ---------------------------------------------------------------- cudt compare


def _folder(name: str, meaning: str) -> Any:
    return typer.Argument(metavar=name, help=meaning, exists=True, file_okay=False)


def compare(
    first: Annotated[Path, _folder("A", "Run folder, the baseline.")],
    second: Annotated[Path, _folder("B", "Run folder to compare with it.")],
    weights: options.Weights = None,
    on: options.OnData = None,
) -> None:
    """Compare two finished runs: settings, layers, and the metric at each noise level.

    Differences are B − A. Their 95 % interval is over the test examples, which both must share.
    """
    from cudt.report import compare as comparing
    from cudt.report import frames
    from cudt.runs.run import OWN

    both = frames.read_two(first, second, weights, on or OWN)
    comparing.assign(both)
    sides = [both.row(0), both.row(1)]
    for name, run in zip("AB", sides, strict=True):
        options.say(f"{name}  {run.recipe}, {run.objective}, seed {run.seed}: {run.path}")
        if not run.noises:
            options.say(f"   not evaluated yet; run: {as_command('eval-ood', run.path)}")
    _print_settings(sides)
    _print_layers(both, sides)
    if sides[0].metric != sides[1].metric:
        options.say(f"\nno curves: the metrics are {sides[0].metric} and {sides[1].metric}")
        return
    for kind in sorted({*sides[0].noises} & {*sides[1].noises}):
        _print_curves(both, sides, kind)


def _print_settings(sides: Sequence[Any]) -> None:
    import pandas as pd

    from cudt.config import yaml
    from cudt.config.differences import differing_keys

    names = ["recipe", "objective", "weights", "data"]
    settings = [{**run[names], "seed": int(run.seed), **run.settings} for run in sides]
    keys = differing_keys(settings)
    options.say("\nsettings that differ" if keys else "\nno setting differs")
    values = ([yaml.dump_line(one.get(key)) for key in keys] for one in settings)
    table = pd.DataFrame(dict(zip(("setting", "A", "B"), (keys, *values), strict=True)))
    options.print_table(table, left=[*table])


def _print_layers(both: Frames, sides: Sequence[Any]) -> None:
    """Loss, achieved rate and verdict of each layer: on validation data, or on test data for
    weights or data that are not a run's own.
    """
    import pandas as pd

    from cudt.method import theory
    from cudt.utils.text import short_number

    on_test, tables = not all(run.is_own for run in sides), []
    options.say(f"\nlayers on {'test' if on_test else 'validation'} data at γ_train")
    for number, (name, run) in enumerate(zip("AB", sides, strict=True)):
        verdicts = both.test_verdicts(number) if on_test else run.verdicts
        losses = [one.loss for one in verdicts]
        rates = theory.achieved_rates(losses, run.reference)
        columns = {"loss": map(short_number, losses), "rate": (f"{one:.3f}" for one in rates)}
        columns["verdict"] = (one.verdict for one in verdicts)
        of_layers = range(1, len(losses) + 1)
        tables.append(pd.DataFrame(columns, index=of_layers).add_suffix(f" {name}"))
        trained = [] if on_test else _trained_losses(both, number)
        if len(trained) == len(losses):
            options.say(f"{name}: ζ = {theory.estimation_gap(trained, losses):.4f}")
    table = pd.concat(tables, axis=1).reset_index(names="layer")
    options.print_table(table, left=["verdict A", "verdict B"])
    options.say("rate: 1 − f_l / f_{l−1}, at least α_l where a linear constraint is met")


def _trained_losses(both: Frames, number: int) -> list[float]:
    """The mean loss of each layer over the logged updates of a run's epoch."""
    history = both.history(number)
    mine = history[(history["split"] == "train") & (history["name"] == "loss")]
    mine = mine[mine["epoch"] == both.row(number).best_epoch]
    return list(mine.groupby("layer")["value"].mean())


def _print_curves(both: Frames, sides: Sequence[Any], kind: str) -> None:
    """Both curves under one kind of noise, and why there is no interval if there is none."""
    import pandas as pd

    from cudt.config.levels import scale_of
    from cudt.report.paired import Differences

    symbol = scale_of(kind).symbol
    curves = [both.curve(number, kind) for number in (0, 1)]
    shifts = [_shifts(both, number, kind) for number in (0, 1)]
    found, problem, rows = Differences(both).rows(kind, [1], [0]), _different_tests(sides), []
    for row in found if {*curves[0]} & {*curves[1]} else []:
        level, is_level = row["gamma"], row["quantity"] == "metric"
        cells = {"level": f"{symbol} = {level:g}" if is_level else _OVER_LEVELS[row["quantity"]]}
        for name, curve, moved in zip("AB", curves, shifts, strict=True):
            cells[name] = f"{curve[level]:.4f}" if is_level else ""
            cells[f"Cτ {name}"] = f"{moved[level]:.4f}" if level in moved else ""
        cells["B − A"] = f"{row['difference']:+.4f}"
        if row["low"] == row["low"] and not problem:
            cells["95 % interval"] = f"{row['low']:+.4f} to {row['high']:+.4f}"
        rows.append(cells)
    options.say(f"\n{sides[0].metric} under {kind} noise on test data")
    columns = ["level", "A", "B", "B − A", "95 % interval", "Cτ A", "Cτ B"]
    options.print_table(pd.DataFrame(rows, columns=columns))
    options.say("Cτ: how far the layer losses have moved since the noise of training")
    if reason := problem or "; ".join(dict.fromkeys(filter(None, (r["reason"] for r in found)))):
        options.say(f"no interval: {reason}")


def _shifts(both: Frames, number: int, kind: str) -> dict[float, float]:
    """Cτ of a run by level, from its layer losses on test data."""
    from cudt.config.levels import training_level
    from cudt.method.theory import distribution_shift

    rows = both.layers[(both.layers["run"] == number) & (both.layers["split"] == "test")]
    rows = rows[rows["perturbation"] == kind].sort_values("layer")
    losses = {level: mine["loss"].tolist() for level, mine in rows.groupby("gamma")}
    trained = losses.get(training_level(kind, both.row(number).gamma_train))
    if trained is None:
        return {}
    return {float(level): distribution_shift(one, trained) for level, one in losses.items()}


def _different_tests(sides: Sequence[Any]) -> str:
    """Why two runs have no test examples in common; empty if they may have."""
    # Generated test data have no fingerprint: they follow from the task, but for its loss.
    tasks = [{**run.task, "loss": ""} for run in sides]
    is_same = tasks[0] == tasks[1] or "" != sides[0].test_data == sides[1].test_data
    return "" if is_same else "the runs have different test data"
