"""The figures of the paper, and those that diagnose the method. Each is a function from runs to
charts: to add one, write it here and name it in `FIGURES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import torch

from cudt.config.differences import symbol, value_text
from cudt.config.levels import scale_of, training_level
from cudt.evaluation.tables import psnr
from cudt.method.constraints import TOLERANCE, allowed_losses
from cudt.report import charts
from cudt.report.charts import Drawing, Figure, Sides, View, averaged, panel, side_by_side
from cudt.report.compare import BASELINE, failing_layers, in_order, is_constrained, short
from cudt.report.frames import each
from cudt.report.paired import over_levels
from cudt.utils.files import file_name

#: γ_train of the paper's grids for text and for video, by metric.
_GRID_LEVELS = {"accuracy": 0.8, "RMSE": 0.13}
#: Model, data set, depth and γ_train of the paper's trade-offs between ID and OOD quality.
_TRADEOFFS = (
    ("UT", "ShanghaiTech", 7, 0.09),
    ("ViT", "UCSD", 12, 0.13),
    ("DUST", "Avenue", 7, 0.15),
)
#: Settings that have figures of their own, so that no ablation is drawn of them.
_NOT_ABLATED = ("noise.gamma_train", "model.layers")
#: Values of a setting that make an ablation; points of one line over training.
_FEWEST_VALUES, _MOST_POINTS = 3, 60
_SMALL = (230, 180)
#: What the constraints of an infeasible run allow.
_ALLOWED = charts.Line("loss allowed, ± 2 standard errors", [], charts.GREY, [1, 2])


# ---------------------------------------------------------------- one recipe


def descent_and_robustness(view: View) -> Iterator[Drawing]:
    """Loss by layer next to the metric against the noise level: the paper's Figure 1 and Llama."""
    sides = view.pair()
    if not sides:
        return
    lines = charts.lines_of(sides)
    references = {*view.runs["reference"].loc[charts.runs_of(sides)]}
    rule = references.pop() if len(references) == 1 else None
    title = "Loss by layer" + ("" if rule is None else f" (dashed: f_0 = {rule:.3g})")
    panels = [view.losses(lines, title, rule=rule), view.curves(lines, f"Under {view.kind} noise")]
    caption = f"{view.name}: loss by layer, and {view.metric} under {view.kind} noise"
    yield Drawing(side_by_side(panels), caption + view.trained_at(sides))


def layer_ratios(view: View) -> Iterator[Drawing]:
    """Density and distribution of f_l / f_{l−1} over examples."""
    sides = view.pair()
    found = [view.frames.bins(run, view.kind) for run in charts.runs_of(sides)]
    bins = pd.concat(found) if found else pd.DataFrame()
    if bins.empty:
        return
    mine = bins[bins["right"] < np.inf]
    lines, x = charts.lines_of(sides), "ratio f_l / f_(l−1) of an example"
    width = mine["right"] - mine["left"]
    density = mine.assign(x=mine["left"] + width / 2, share=mine["share"] / width)
    distribution = mine.assign(x=mine["right"], share=mine["cumulative"])
    at_one = alt.Chart(pd.DataFrame({"x": [1.0]})).mark_rule(color=charts.GREY, strokeDash=[3, 3])
    panels = []
    for table, y in ((density, "density"), (distribution, "share of steps below")):
        rows = averaged(table, lines, "x", "share").assign(low=np.nan)
        panels.append(panel(rows, lines, x, y, dots=False) + at_one.encode(alt.X("x:Q", title=x)))
    caption = f"{view.name}: layer ratios of single examples, {view.kind} noise of training"
    yield Drawing(side_by_side(panels), caption + view.trained_at(sides))


def errors_over_layers(view: View) -> Iterator[Drawing]:
    """The error of every layer's answer: clean, at the level of training and at the highest."""
    sides, table = view.pair(), view.layers
    runs = charts.runs_of(sides)
    found = [{*table["gamma"][table["run"] == run]} for run in runs]
    shared = sorted(set.intersection(*found)) if found else []
    if not shared:
        return
    lines, first = charts.lines_of(sides), view.frames.row(runs[0])
    trained = training_level(view.kind, first["gamma_train"])
    error, name = table["metric"], view.metric
    if first["higher_is_better"]:
        error, name = 1 - error, f"1 − {name}"
    panels = []
    for level in sorted({shared[0], shared[-1], *({trained} & {*shared})}):
        rows = averaged(table.assign(error=error)[table["gamma"] == level], lines, "layer", "error")
        title = f"{scale_of(view.kind).symbol} = {level:g}"
        title += " (training)" if level == trained else ""
        panels.append(panel(rows, lines, "layer", f"test {name}", title, size=_SMALL))
    caption = f"{view.name}: {name} over layers under {view.kind} noise"
    yield Drawing(side_by_side(panels), caption + view.trained_at(sides))


def constraints_kept(view: View) -> Iterator[Drawing]:
    """Constraints kept at each noise level; every objective is judged by the constrained run's."""
    sides, table = view.pair(), view.layers
    judges = [run for name, side in sides.items() if is_constrained(name) for run in side.runs]
    counts = []
    for run in charts.runs_of(sides):
        seeds = [one for one in judges if view.frames.row(one).seed == view.frames.row(run).seed]
        judge = view.frames.row((seeds or judges or [run])[0])
        for gamma, rows in table[table["run"] == run].sort_values("layer").groupby("gamma"):
            losses = torch.tensor(rows["loss"].to_numpy())
            allowed = allowed_losses(losses, judge.reference, judge.rates, judge.descent["form"])
            # A violation within two standard errors counts as kept, as in the verdicts.
            free = TOLERANCE * torch.tensor(rows["standard_error"].to_numpy())
            kept = int((losses - allowed <= free).sum())
            counts.append({"run": run, "gamma": gamma, "kept": kept})
    if not counts:
        return
    lines, depth = charts.lines_of(sides), view.frames.row(counts[0]["run"]).n_layers
    rows = averaged(pd.DataFrame(counts), lines, "gamma", "kept")
    rows = rows.assign(low=rows["low"].clip(lower=0), high=rows["high"].clip(upper=depth))
    chart = panel(rows, lines, view.axis, f"constraints kept, of {depth}")
    caption = f"{view.name}: constraints kept on test data under {view.kind} noise"
    yield Drawing(chart, caption + view.trained_at(sides))


def training_levels(view: View) -> Iterator[Drawing]:
    """The metric against the noise level for each γ_train, at the depth that has most of them."""
    paper = view.evaluated[view.evaluated["constraints"] == ""]
    counts = paper.groupby("n_layers")["gamma_train"].nunique()
    if counts.empty or counts.max() < 2:
        return
    depth = counts[counts == counts.max()].index.max()
    deep = paper[paper["n_layers"] == depth]
    views = [view.of(mine.index) for _, mine in deep.groupby("gamma_train")]
    caption = f"{view.name}: {view.metric} under {view.kind} noise by γ_train"
    yield Drawing(_panels([(one, one.pair(), "") for one in views]), caption)


def noise_kinds(view: View) -> Iterator[Drawing]:
    """The metric under each kind of noise: the paper's uniform and discrete noise."""
    views = [View(view.frames, view.name, kind) for kind in view.kinds]
    if len(views) > 1:
        chart = _panels([(one, one.pair(), f"{one.kind} noise") for one in views])
        yield Drawing(chart, f"{view.name}: {view.metric} under {', '.join(view.kinds)} noise")


def _panels(shown: Sequence[tuple[View, Sides, str]]) -> Any:
    """Panels of curves with one legend, titled `name`, `γ_train = 0.2, L = 12, 3 seeds`."""
    objectives, panels = in_order([name for _, sides, _ in shown for name in sides]), []
    for view, sides, title in shown:
        runs = view.runs.loc[charts.runs_of(sides)]
        depths, levels = (
            ", ".join(f"{one:g}" for one in sorted({*runs[name]}))
            for name in ("n_layers", "gamma_train")
        )
        hows = ", ".join(dict.fromkeys(side.how for side in sides.values()))
        about = f"γ_train = {levels}, L = {depths}, {hows}"
        lines = [
            charts.plain_line(name, sides[name].runs if name in sides else ())
            for name in objectives
        ]
        panels.append(view.curves(lines, [title, about] if title else about, size=_SMALL))
    return side_by_side(panels)


def by_depth(view: View) -> Iterator[Drawing]:
    """Loss by layer and curves for each depth, and the mean and area of each curve against depth."""
    found: dict[float, dict[str, dict[int, list[int]]]] = {}
    for (level, depth), mine in view.evaluated.groupby(["gamma_train", "n_layers"]):
        for name, side in view.of(mine.index).pair(level).items():
            found.setdefault(level, {}).setdefault(name, {})[depth] = side.runs
    deep = {
        level: {name: sides[name] for name in in_order(sides) if len(sides[name]) > 1}
        for level, sides in found.items()
    }
    if not any(deep.values()):
        return
    # The paper's figures are at γ_train = 0.
    level = max(deep, key=lambda one: (len(deep[one]), one == 0, one))
    rows, panels, sums = [], [], []
    plain = [charts.plain_line(name) for name in deep[level]]
    for line, depths in zip(plain, deep[level].values(), strict=True):
        lines = charts.shaded({f"L = {depth}": runs for depth, runs in depths.items()}, line.dash)
        left, right = view.losses(lines, line.label), view.curves(lines, f"{view.kind} noise")
        panels.append(side_by_side([left, right]))
        for depth, run in ((depth, run) for depth, runs in depths.items() for run in runs):
            curve = view.frames.curve(run, view.kind)
            rows.append({"line": line.label, "x": depth, **over_levels(curve, view.kind, level)})
    for y, title in (("mean", f"mean {view.metric} over levels"), ("auc", "area under the curve")):
        ends = charts.spread(pd.DataFrame(rows).groupby(["line", "x"])[y])
        sums.append(panel(ends.reset_index(), plain, "layers L", title, bars=True))
    caption = f"{view.name}: by depth, γ_train = {level:g}, {view.kind} noise"
    yield Drawing(charts.stacked([*panels, side_by_side(sums)]), caption)


def ablations(view: View) -> Iterator[Drawing]:
    """The metric against one setting, all else equal, with error bars over seeds; and a line for
    each value: the paper's ablations of α and η₂.
    """
    for key, mine in _series(view.evaluated[view.evaluated["is_constrained"]]).items():
        values = {f"{symbol(key)} = {value_text(value)}": value for value in mine}
        lines = charts.shaded(dict(zip(values, mine.values(), strict=True)))
        rows = averaged(view.points, lines, "gamma", "value")
        shared = sorted(set.intersection(*({*part["x"]} for _, part in rows.groupby("line"))))
        if not shared or rows["line"].nunique() < len(values):
            continue
        # As in the paper: clean, and at a half and at three quarters of the highest level.
        wanted = (shared[0], shared[-1] * 1.05 / 2.1, shared[-1] * 1.65 / 2.1)
        levels = sorted({min(shared, key=lambda one: abs(one - level)) for level in wanted})
        names = {level: f"{scale_of(view.kind).symbol} = {level:g}" for level in levels}
        at = rows.assign(line=rows["x"].map(names), x=rows["line"].map(values))
        title = symbol(key) if symbol(key) == key else f"{symbol(key)} ({key})"
        by_level = charts.shaded({name: [] for name in names.values()})
        is_log = min(mine) > 0 and max(mine) > 20 * min(mine)
        at, y = at.dropna(subset="line"), f"test {view.metric}"
        effect = panel(at, by_level, title, y, bars=True, is_log_x=is_log)
        below = side_by_side([view.losses(lines), view.curves(lines, f"Under {view.kind} noise")])
        caption = f"{view.name}: {view.metric} against {title}, all else equal"
        yield Drawing(charts.stacked([effect, below]), caption, file_name(key))


def _series(runs: pd.DataFrame) -> dict[str, dict[float, list[int]]]:
    """The settings of which groups have at least three values, all else equal, each with the runs
    by value; of several series, the one with most values, then most runs.
    """
    groups = [group for _, group in runs.groupby("group", sort=False)]
    settings = [group["settings"].iloc[0] for group in groups]
    series: dict[str, dict[float, list[int]]] = {}
    for key in dict.fromkeys(key for one in settings for key in one):
        found: dict[Any, dict[float, list[int]]] = {}
        for one, group in zip(settings, groups, strict=True):
            value = one.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool):
                others = frozenset(item for item in one.items() if item[0] != key)
                alike = found.setdefault((group["objective"].iloc[0], others), {})
                alike[value] = [*group.index]
        most = max(found.values(), key=lambda o: (len(o), sum(map(len, o.values()))), default={})
        if len(most) >= _FEWEST_VALUES and key not in _NOT_ABLATED:
            series[key] = dict(sorted(most.items()))
    return series


def multipliers_and_weights(view: View) -> Iterator[Drawing]:
    """λ_l and the effective weight w_l = ∂J/∂f_l of each layer over the training of one seed.

    Where a weight is negative, an update raises that layer's loss: the cheap way to meet the next
    layer's constraint.
    """
    for name, side in view.pair().items():
        history, panels = view.frames.history(side.runs[0]), []
        for logged, y in (("multiplier", "multiplier λ"), ("weight", "effective weight w")):
            mine = history[(history["split"] == "train") & (history["name"] == logged)]
            if mine.empty or not is_constrained(name):
                continue
            steps = np.array(sorted({*mine["step"]}))
            kept = steps[np.linspace(0, len(steps) - 1, _MOST_POINTS).round().astype(int)]
            rows = mine[mine["step"].isin(kept)].rename(columns={"step": "x", "value": "y"})
            rows = rows.assign(line="layer " + rows["layer"].astype(str), low=np.nan, high=np.nan)
            lines = charts.shaded({line: [] for line in rows.sort_values("layer")["line"].unique()})
            panels.append(panel(rows, lines, "update", y, rule=0, dots=False))
        if panels:
            seed = view.frames.row(side.runs[0]).seed
            caption = f"{view.name}: multipliers and weights over training, {name}, seed {seed}"
            yield Drawing(side_by_side(panels), caption + view.trained_at({name: side}))


# ---------------------------------------------------------------- all recipes


def grid(view: View) -> Iterator[Drawing]:
    """The metric against the noise level of every recipe: the paper's grids of text and video."""
    together: dict[tuple[str, str], list[View]] = {}
    for one in view.families():
        together.setdefault((one.metric, one.kind), []).append(one)
    for (metric, kind), members in together.items():
        level = _GRID_LEVELS.get(metric)
        shown = [(one, one.pair(level, own_depths=True), one.name) for one in members]
        caption = f"{metric} under {kind} noise by recipe, each objective at its best depth"
        if len(members) > 1:
            yield Drawing(_panels(shown), caption, f"{file_name(metric)}-{kind}")


def tradeoffs(view: View) -> Iterator[Drawing]:
    """The three settings in which the paper shows a trade-off between ID and OOD quality."""
    places: dict[Any, list[int]] = {}
    for run in each(view.runs[view.runs["is_published"]]):
        place = run.published["model"], run.published["dataset"], run.n_layers
        places.setdefault(place, []).append(run.Index)
    shown = []
    for model, dataset, layers, gamma in _TRADEOFFS:
        families = view.of(places.get((model, dataset, layers), [])).families()
        shown += [(one, one.pair(gamma), f"{model} on {dataset}") for one in families]
    if shown:
        yield Drawing(_panels(shown), "In and out of distribution in the paper's settings")


def infeasible_runs(view: View) -> Iterator[Drawing]:
    """Of each recipe the run that violates most constraints, next to ERM: losses with what each
    layer was allowed, the metric under noise, and the metric (PSNR for RMSE) by layer.
    """

    def rank(row: Any) -> list[int]:
        return [len(row.failing.get(word, [])) for word in ("violated", "relaxed")]

    rows = []
    for one in view.families():
        worst = max(each(one.evaluated), key=rank)
        if not worst.failing:
            continue
        cell = one.runs.index[one.runs["cell"] == worst.cell]
        erm = one.of(cell).pair().get(BASELINE)
        # Of several seeds that of the run: seeds differ by more than objectives.
        seeds = one.runs.loc[erm.runs if erm else [], "seed"]
        twin = [*seeds.index[seeds == worst.seed], *seeds.index][:1]
        lines = [
            charts.plain_line(name, mine, f"seed {one.runs.loc[mine[0], 'seed']}" if mine else "")
            for name, mine in ((worst.objective, [worst.Index]), (BASELINE, twin))
        ]
        table, metric = one.layers[one.layers["is_trained"]], worst.metric
        if metric == "RMSE":
            table, metric = table.assign(metric=psnr(table["metric"])), "PSNR (dB)"
        by_layer = averaged(table, lines, "layer", "metric")
        panels = [
            _verdicts(one, worst, lines),
            one.curves([*lines, _ALLOWED], "Under noise", size=_SMALL),
            panel(by_layer, [*lines, _ALLOWED], "layer", f"test {metric}", size=_SMALL),
        ]
        rows.append(side_by_side(panels))
    if rows:
        caption = "Infeasible runs next to ERM: of each recipe, the run with most violated layers"
        yield Drawing(alt.vconcat(*rows), caption)


def _verdicts(view: View, row: Any, lines: Sequence[charts.Line]) -> Any:
    """Validation losses by layer, what each was allowed ± 2 standard errors, and what fails."""
    found = [
        {"line": line.label, "x": one.layer, "y": one.loss}
        for line in lines
        for run in line.runs
        for one in view.frames.row(run).verdicts
    ]
    for one in row.verdicts:
        free = TOLERANCE * one.standard_error
        ends = {"low": one.allowed - free, "high": one.allowed + free}
        found.append({"line": _ALLOWED.label, "x": one.layer, "y": one.allowed, **ends})
    # A line of the title for each verdict: a longer one would push the panels apart.
    title = [view.name, *failing_layers(row.failing).split("; ")]
    rows, every = pd.DataFrame(found), [*lines, _ALLOWED]
    return panel(rows, every, "layer", "validation loss", title, bars=True, size=_SMALL)


def average_descent(view: View) -> Iterator[Drawing]:
    """f_l / f_0 against relative depth l / L, averaged over runs: the paper's average trajectory.

    Losses of different depths and tasks cannot be averaged, but their ratios to f_0 can. Ratios
    multiply from layer to layer, so means are geometric; the band is one standard deviation.
    """
    steps, logs = np.linspace(0, 1, 25), []
    for one in view.families():
        table = one.layers[one.layers["is_trained"]].sort_values("layer")
        for run, rows in table.groupby("run"):
            own = one.runs.loc[run]
            ratios = np.array([1.0, *(rows["loss"] / own["reference"])])
            if (ratios > 0).all() and np.isfinite(ratios).all():
                log = np.interp(steps, np.linspace(0, 1, len(ratios)), np.log(ratios))
                facts = {"metric": own["metric"], "objective": own["objective"]}
                logs.append(pd.DataFrame({**facts, "x": steps, "log": log}))
    if len(logs) < 2:
        return
    found, panels = pd.concat(logs), []
    for metric, mine in found.groupby("metric"):
        objectives = in_order(mine["objective"])
        ends = charts.spread(
            mine.groupby([mine["objective"].map(short).rename("line"), "x"])["log"]
        )
        counts = mine["objective"].value_counts() // len(steps)
        title = [metric, ", ".join(f"{counts[name]} {short(name)}" for name in objectives)]
        lines = [charts.plain_line(name) for name in objectives]
        options: Any = {"rule": 1, "dots": False}
        x, y = "relative depth l / L", "test loss f_l / f_0"
        panels.append(panel(np.exp(ends).reset_index(), lines, x, y, title, **options))
    caption = f"Average descent over {len(logs)} runs, each at its training noise level"
    yield Drawing(charts.stacked(panels), caption)


FIGURES = (
    Figure("descent-and-robustness", descent_and_robustness, "noise"),
    Figure("errors-over-layers", errors_over_layers),
    Figure("layer-ratios", layer_ratios, "noise"),
    Figure("constraints-kept", constraints_kept),
    Figure("multipliers-and-weights", multipliers_and_weights),
    Figure("noise-kinds", noise_kinds),
    Figure("training-levels", training_levels),
    Figure("by-depth", by_depth),
    Figure("ablation", ablations),
    Figure("grid", grid, "all"),
    Figure("tradeoffs", tradeoffs, "all"),
    Figure("infeasible-runs", infeasible_runs, "all"),
    Figure("average-descent", average_descent, "all"),
)
