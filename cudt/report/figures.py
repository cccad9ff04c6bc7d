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
from cudt.config.levels import training_level
from cudt.evaluation.tables import psnr
from cudt.method.constraints import TOLERANCE, allowed_losses
from cudt.report.charts import (
    GREY,
    PAPER_LEVELS,
    Drawing,
    Figure,
    Line,
    View,
    averaged,
    curve_panel,
    curves,
    layers_on_test,
    lines_of,
    losses,
    panel,
    runs_of,
    shaded,
    side_by_side,
    stacked,
    style,
    trained_at,
)
from cudt.report.compare import (
    BASELINE,
    failing_layers,
    in_order,
    is_constrained,
    objective_labels,
)
from cudt.report.frames import Sweep, each
from cudt.report.paired import Quantities
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
#: Values of a setting that make an ablation; panels of one figure; points of one line over training.
_FEWEST_VALUES, _MOST_PANELS, _MOST_POINTS = 3, 12, 60
_SMALL = (230, 180)


# ---------------------------------------------------------------- one recipe


def descent_and_robustness(view: View) -> Iterator[Drawing]:
    """Loss by layer next to the metric against the noise level: the paper's Figure 1 and Llama."""
    sides = view.pair()
    if not sides:
        return
    lines = lines_of(sides)
    references = {view.frames.row(run).reference for run in runs_of(sides)}
    rule = references.pop() if len(references) == 1 else None
    title = ["Loss by layer", "" if rule is None else f"dashed: f₀ = {rule:.3g}"]
    left = panel(losses(view, lines), lines, "layer", "test loss", title, rule=rule)
    chart = side_by_side([left, curve_panel(view, lines, ["Robustness", f"{view.kind} noise"])])
    paper = trained_at(view, sides, PAPER_LEVELS.get(view.metric))
    caption = f"{view.name}: loss by layer, and {view.metric} under {view.kind} noise{paper}"
    yield Drawing(chart, caption)


def layer_ratios(view: View) -> Iterator[Drawing]:
    """Density and distribution of f_l / f_{l−1} over examples."""
    bins = view.frames.bins
    mine = bins[(bins["perturbation"] == view.kind) & (bins["right"] < np.inf)]
    sides = view.of(sorted({*mine["run"]})).pair() if len(mine) else {}
    if not sides:
        return
    lines, x = lines_of(sides), "ratio f_l / f_(l−1) of an example"
    width = mine["right"] - mine["left"]
    density = mine.assign(x=mine["left"] + width / 2, share=mine["share"] / width)
    distribution = mine.assign(x=mine["right"], share=mine["cumulative"])
    at_one = alt.Chart(pd.DataFrame({"x": [1.0]})).mark_rule(color=GREY, strokeDash=[3, 3])
    panels = []
    for table, y in ((density, "density"), (distribution, "share of steps below")):
        rows = averaged(table, lines, "x", "share").assign(low=np.nan)
        panels.append(panel(rows, lines, x, y, dots=False) + at_one.encode(alt.X("x:Q", title=x)))
    caption = f"{view.name}: layer ratios of single examples, {view.kind} noise of training"
    yield Drawing(side_by_side(panels), caption + trained_at(view, sides))


def errors_over_layers(view: View) -> Iterator[Drawing]:
    """The error of every layer's answer: clean, at the level of training and at the highest."""
    sides, table = view.pair(), layers_on_test(view)
    runs = runs_of(sides)
    found = [{*table["gamma"][table["run"] == run]} for run in runs]
    shared = sorted(set.intersection(*found)) if found else []
    if not shared:
        return
    lines, first = lines_of(sides), view.runs.loc[runs[0]]
    trained = training_level(view.kind, first["gamma_train"])
    is_up, name = first["higher_is_better"], view.metric
    error, name = (1 - table["metric"], f"1 − {name}") if is_up else (table["metric"], name)
    panels = []
    for level in sorted({shared[0], shared[-1], *({trained} & {*shared})}):
        rows = averaged(table.assign(error=error)[table["gamma"] == level], lines, "layer", "error")
        title = f"{view.symbol} = {level:g}" + (" (training)" if level == trained else "")
        panels.append(panel(rows, lines, "layer", f"test {name}", title, size=_SMALL))
    caption = f"{view.name}: {name} over layers under {view.kind} noise"
    yield Drawing(side_by_side(panels), caption + trained_at(view, sides))


def constraints_kept(view: View) -> Iterator[Drawing]:
    """Constraints kept at each noise level; every objective is judged by the constrained run's."""
    sides, table = view.pair(), layers_on_test(view)
    judges = [run for name, side in sides.items() if is_constrained(name) for run in side.runs]
    counts = []
    for run in runs_of(sides):
        seeds = [one for one in judges if view.frames.row(one).seed == view.frames.row(run).seed]
        judge = view.frames.row((seeds or judges or [run])[0])
        for gamma, rows in table[table["run"] == run].sort_values("layer").groupby("gamma"):
            found = torch.tensor(rows["loss"].to_numpy())
            allowed = allowed_losses(found, judge.reference, judge.rates, judge.descent["form"])
            # A violation within two standard errors counts as kept, as in the verdicts.
            free = TOLERANCE * torch.tensor(rows["standard_error"].to_numpy())
            counts.append({"run": run, "gamma": gamma, "kept": int((found - allowed <= free).sum())})
    if not counts:
        return
    lines, depth = lines_of(sides), view.frames.row(counts[0]["run"]).n_layers
    rows = averaged(pd.DataFrame(counts), lines, "gamma", "kept")
    rows = rows.assign(low=rows["low"].clip(lower=0), high=rows["high"].clip(upper=depth))
    chart = panel(rows, lines, view.axis, f"constraints kept, of {depth}")
    caption = f"{view.name}: constraints kept on test data under {view.kind} noise"
    yield Drawing(chart, caption + trained_at(view, sides))


def training_levels(view: View) -> Iterator[Drawing]:
    """The metric against the noise level for each γ_train, at the depth that has most of them."""
    paper = view.evaluated[view.evaluated["constraints"] == ""]
    counts = paper.groupby("n_layers")["gamma_train"].nunique()
    if counts.max() < 2 or counts.empty:
        return
    depth = counts[counts == counts.max()].index.max()
    deep = paper[paper["n_layers"] == depth]
    levels = np.array(sorted({*deep["gamma_train"]}))
    spread = np.linspace(0, len(levels) - 1, min(len(levels), 9)).round().astype(int)
    views = {level: view.of(deep.index[deep["gamma_train"] == level]) for level in levels[spread]}
    caption = f"{view.name}: {view.metric} under {view.kind} noise by γ_train, L = {depth}"
    yield Drawing(_curves_of({f"γ_train = {level:g}": one for level, one in views.items()}), caption)


def noise_kinds(view: View) -> Iterator[Drawing]:
    """The metric under each kind of noise: the paper's uniform and discrete noise."""
    views = {f"{kind} noise": View(view.frames, view.name, kind) for kind in view.kinds}
    if len(views) > 1:
        caption = f"{view.name}: {view.metric} under {', '.join(views)}"
        yield Drawing(_curves_of(views), caption)


def _curves_of(views: dict[str, View]) -> Any:
    """A panel of curves for each view, with one legend."""
    lines = [lines_of(view.pair(), counts=False) for view in views.values()]
    return _shared([*views.values()], lines, [*views])


def _shared(views: Sequence[View], lines: Sequence[list[Line]], titles: Sequence[Any]) -> Any:
    """Panels of curves whose legend has the lines of all."""
    every = {line.label: line for mine in lines for line in mine}
    panels = []
    for view, mine, title in zip(views, lines, titles, strict=True):
        own = {line.label: line for line in mine}
        named = [own.get(n, Line(n, [], one.color, one.dash)) for n, one in every.items()]
        panels.append(curve_panel(view, named, title, size=_SMALL))
    return side_by_side(panels)


def by_depth(view: View) -> Iterator[Drawing]:
    """Loss by layer and curves for each depth, and the mean and area of each curve against depth."""
    levels = {run.gamma_train for run in each(view.evaluated)}
    found: dict[float, dict[str, dict[int, list[int]]]] = {}
    for level in levels:
        mine = view.evaluated[view.evaluated["gamma_train"] == level]
        for depth, deep in mine.groupby("n_layers"):
            for name, side in view.of(deep.index).pair(level).items():
                found.setdefault(level, {}).setdefault(name, {})[int(depth)] = side.runs
    deep = {
        level: {name: sides[name] for name in in_order(sides) if len(sides[name]) > 1}
        for level, sides in found.items()
    }
    if not any(deep.values()):
        return
    # The paper's figures are at γ_train = 0.
    level = max(deep, key=lambda one: (len(deep[one]), one == 0, one))
    called, rows, charts = objective_labels(deep[level]), [], []
    for name, depths in deep[level].items():
        lines = shaded({f"L = {depth}": runs for depth, runs in depths.items()}, style(name)[1])
        left = panel(losses(view, lines), lines, "layer", "test loss", called[name])
        charts.append(side_by_side([left, curve_panel(view, lines, f"{view.kind} noise")]))
        rows += [
            {"run": run, "line": called[name], "depth": depth, **_over_levels(view, run)}
            for depth, runs in depths.items()
            for run in runs
        ]
    table, panels = pd.DataFrame(rows), []
    for y, title in (("mean", f"mean {view.metric} over γ"), ("auc", "area under the curve")):
        grouped = table.groupby(["line", "depth"])[y].agg(["mean", "std"]).reset_index()
        grouped = grouped.rename(columns={"depth": "x", "mean": "y"})
        grouped = grouped.assign(low=grouped.y - grouped["std"], high=grouped.y + grouped["std"])
        lines = [Line(called[name], [], *style(name, called)) for name in deep[level]]
        panels.append(panel(grouped, lines, "layers L", title, bars=True))
    caption = f"{view.name}: by depth, γ_train = {level:g}, {view.kind} noise"
    yield Drawing(stacked([*charts, side_by_side(panels)]), caption)


def _over_levels(view: View, run: int) -> dict[str, float]:
    curve = view.frames.curve(run, view.kind)
    wanted = Quantities.over([*curve], view.kind, view.frames.row(run).gamma_train)
    return wanted.named([*curve.values()])


def ablations(view: View) -> Iterator[Drawing]:
    """The metric against one setting, all else equal, with error bars over seeds; and a line for
    each value: the paper's ablations of α and η₂.
    """
    for key, mine in _series(view.evaluated[view.evaluated["is_constrained"]]).items():
        values = {f"{symbol(key)} = {value_text(value)}": value for value in mine}
        lines = shaded(dict(zip(values, mine.values(), strict=True)))
        rows = curves(view, lines)
        shared = sorted(set.intersection(*({*part["x"]} for _, part in rows.groupby("line"))))
        if not shared or rows["line"].nunique() < len(values):
            continue
        # As in the paper: clean, and at a half and at three quarters of the highest level.
        wanted = (shared[0], shared[-1] * 1.05 / 2.1, shared[-1] * 1.65 / 2.1)
        levels = sorted({min(shared, key=lambda one: abs(one - level)) for level in wanted})
        names = {level: f"{view.symbol} = {level:g}" for level in levels}
        at = rows.assign(line=rows["x"].map(names), x=rows["line"].map(values)).dropna(subset="line")
        title = symbol(key) if symbol(key) == key else f"{symbol(key)} ({key})"
        is_log = min(mine) > 0 and max(mine) > 20 * min(mine)
        by_level = shaded({name: [] for name in names.values()})
        options: Any = {"is_log_x": is_log, "bars": True}
        effect = panel(at, by_level, title, f"test {view.metric}", "Against the setting", **options)
        below = [
            panel(losses(view, lines), lines, "layer", "test loss", "Loss by layer"),
            curve_panel(view, lines, f"Under {view.kind} noise"),
        ]
        caption = f"{view.name}: {view.metric} against {title}, all else equal"
        yield Drawing(stacked([effect, side_by_side(below)]), caption, file_name(key))


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
        if not is_constrained(name):
            continue
        history, panels = view.frames.history(side.runs[0]), []
        for logged, y in (("multiplier", "multiplier λ"), ("weight", "effective weight w")):
            mine = history[(history["split"] == "train") & (history["name"] == logged)]
            if mine.empty:
                continue
            steps = np.array(sorted({*mine["step"]}))
            kept = steps[np.linspace(0, len(steps) - 1, _MOST_POINTS).round().astype(int)]
            thin = mine[mine["step"].isin(kept)]
            lines = shaded({f"layer {layer}": [] for layer in sorted({*mine["layer"]})})
            rows = pd.DataFrame({"x": thin["step"], "y": thin["value"], "low": np.nan, "high": np.nan})
            rows["line"] = "layer " + thin["layer"].astype(str)
            panels.append(panel(rows, lines, "update", y, rule=0, dots=False))
        if panels:
            seed = view.frames.row(side.runs[0]).seed
            caption = f"{view.name}: multipliers and weights over training, {name}, seed {seed}"
            yield Drawing(side_by_side(panels), caption + trained_at(view, {name: side}))


# ---------------------------------------------------------------- all recipes


def grid(view: View) -> Iterator[Drawing]:
    """The metric against the noise level of every recipe: the paper's grids of text and video."""
    together: dict[tuple[str, str], list[View]] = {}
    for one in view.families():
        together.setdefault((one.metric, one.kind), []).append(one)
    for (metric, kind), members in together.items():
        if len(members) < 2:
            continue
        members.sort(key=lambda one: one.name)
        level = _GRID_LEVELS.get(metric)
        paper = "" if level is None else f"; the paper's figure has γ_train = {level:g}"
        caption = f"{metric} under {kind} noise by recipe, each objective at its best depth{paper}"
        for start in range(0, len(members), _MOST_PANELS):
            shown = members[start : start + _MOST_PANELS]
            number = f"-{1 + start // _MOST_PANELS}" if len(members) > _MOST_PANELS else ""
            sides = [one.pair(level, own_depths=True) for one in shown]
            chart = _titled(shown, sides, [one.name for one in shown])
            yield Drawing(chart, caption, f"{file_name(metric)}-{kind}{number}")


def _titled(views: Sequence[View], sides: Sequence[Any], names: Sequence[str]) -> Any:
    """Panels of curves that say what is shown: `γ_train = 0.2, L = 12, 3 seeds`."""
    titles = []
    for view, mine, name in zip(views, sides, names, strict=True):
        runs = view.runs.loc[runs_of(mine)]
        depths = ", ".join(f"{depth}" for depth in sorted({*runs["n_layers"]}))
        levels = ", ".join(f"{level:g}" for level in sorted({*runs["gamma_train"]}))
        hows = ", ".join(dict.fromkeys(side.how for side in mine.values()))
        titles.append([name, f"γ_train = {levels}, L = {depths}, {hows}"])
    return _shared(views, [lines_of(mine, counts=False) for mine in sides], titles)


def tradeoffs(view: View) -> Iterator[Drawing]:
    """The three settings in which the paper shows a trade-off between ID and OOD quality."""
    views, sides, names, papers = [], [], [], []
    for model, dataset, layers, gamma in _TRADEOFFS:
        is_mine = [
            row.is_published
            and (row.published["model"], row.published["dataset"]) == (model, dataset)
            for row in each(view.runs)
        ]
        mine = view.runs[is_mine]
        deep = mine[mine["n_layers"] == layers]
        for one in view.of((deep if len(deep) else mine).index).families():
            views.append(one)
            sides.append(one.pair(gamma))
            names.append(f"{model} on {dataset}")
        papers.append(f"{model} on {dataset}: L = {layers}, γ_train = {gamma:g}")
    if views:
        caption = f"In and out of distribution in the paper's settings ({', '.join(papers)})"
        yield Drawing(_titled(views, sides, names), caption)


def infeasible_runs(view: View) -> Iterator[Drawing]:
    """Of each recipe the run that violates most constraints, next to ERM: losses with what each
    layer was allowed, the metric under noise, and PSNR where the task measures it.
    """

    def rank(row: Any) -> tuple[bool, int, int]:
        violated, relaxed = (len(row.failing.get(word, [])) for word in ("violated", "relaxed"))
        return bool(row.noises), violated, relaxed

    worst: dict[str, Any] = {}
    for row in sorted((row for row in each(view.runs) if row.failing), key=rank):
        worst[row.family] = row
    rows = []
    for row in sorted(worst.values(), key=rank, reverse=True)[:4]:
        kind = row.kind if row.kind in row.noises else next(iter(row.noises), row.kind)
        one = View(view.frames, row.family, kind)
        lines = [Line(row.objective, [row.Index], *style(row.objective))]
        cell = one.of(view.runs.index[view.runs["cell"] == row.cell])
        erm = cell.pair().get(BASELINE) if row.noises else None
        lines.append(Line(BASELINE, erm.runs[:1] if erm else [], *style(BASELINE)))
        panels = [_verdicts(one, row, lines)]
        if row.noises:
            is_video = row.metric == "RMSE"
            name = "PSNR (dB)" if is_video else one.metric
            table = layers_on_test(one)
            table = table[table["is_trained"]].assign(psnr=psnr(table["metric"]))
            by_layer = averaged(table, lines, "layer", "psnr" if is_video else "metric")
            panels += [
                curve_panel(one, lines, "", "psnr" if is_video else "value", size=_SMALL),
                panel(by_layer, lines, "layer", f"test {name}", size=_SMALL),
            ]
        rows.append(side_by_side(panels))
    if rows:
        caption = "Infeasible runs next to ERM: of each recipe, the run with most violated layers"
        yield Drawing(alt.vconcat(*rows), f"{caption} (grey: loss allowed, ± 2 standard errors)")


def _verdicts(view: View, row: Any, lines: Sequence[Line]) -> Any:
    """Validation losses by layer, what each was allowed ± 2 standard errors, and what fails."""
    found = [
        {"line": line.label, "x": one.layer, "y": one.loss, "low": np.nan, "high": np.nan}
        for line in lines
        for run in line.runs
        for one in view.frames.row(run).verdicts
    ]
    failing = failing_layers(row.failing)
    title = [view.name, failing if len(failing) <= 44 else f"{failing[:43]}…"]
    chart = panel(pd.DataFrame(found), lines, "layer", "validation loss", title, size=_SMALL)
    allowed = pd.DataFrame([
        {"x": one.layer, "y": one.allowed, "low": one.allowed - TOLERANCE * one.standard_error,
         "high": one.allowed + TOLERANCE * one.standard_error}
        for one in row.verdicts
    ])  # fmt: skip
    base = alt.Chart(allowed).encode(alt.X("x:Q", title="layer"))
    tick = base.mark_point(shape="stroke", size=90, color=GREY, opacity=1, strokeWidth=2)
    tick = tick.encode(alt.Y("y:Q", title="validation loss"))
    return chart + base.mark_rule(color=GREY).encode(y="low:Q", y2="high:Q") + tick


def average_descent(view: View) -> Iterator[Drawing]:
    """f_l / f_0 against relative depth l / L, averaged over runs: the paper's average trajectory.

    Losses of different depths and tasks cannot be averaged, but their ratios to f_0 can. Ratios
    multiply from layer to layer, so means are geometric; the band is one standard deviation.
    """
    steps, logs = np.linspace(0, 1, 25), []
    for one in view.families():
        table = layers_on_test(one)
        for run, rows in table[table["is_trained"]].sort_values("layer").groupby("run"):
            own = one.runs.loc[run]
            ratios = np.array([1.0, *(rows["loss"] / own["reference"])])
            if (ratios > 0).all() and np.isfinite(ratios).all():
                log = np.interp(steps, np.linspace(0, 1, len(ratios)), np.log(ratios))
                row = {"metric": own["metric"], "line": own["objective"], "x": steps, "log": log}
                logs.append(pd.DataFrame(row))
    if len(logs) < 2:
        return
    found, panels = pd.concat(logs), []
    for metric, mine in found.groupby("metric"):
        objectives = in_order(mine["line"])
        lines = [Line(name, [], *style(name, objectives)) for name in objectives]
        rows = mine.groupby(["line", "x"])["log"].agg(["mean", "std", "size"]).reset_index()
        counts = ", ".join(f"{n} {name}" for name, n in dict(zip(rows["line"], rows["size"])).items())
        ends = {"y": rows["mean"], "low": rows["mean"] - rows["std"]}
        ends["high"] = rows["mean"] + rows["std"]
        rows = rows.assign(**{name: np.exp(log) for name, log in ends.items()})
        title, x = [str(metric).replace("_", " "), counts], "relative depth l / L"
        panels.append(panel(rows, lines, x, "test loss f_l / f₀", title, rule=1, dots=False))
    caption = f"Average descent over {len(logs)} runs, each at its training noise level"
    yield Drawing(stacked(panels) if len(panels) > 1 else panels[0], caption)


def slices(sweep: Sweep) -> Iterator[Drawing]:
    """The score against each searched setting; the best of each arm has a ring."""
    names = {"grid": "mean metric over γ", "metric": "metric", "loss": "loss"}
    title, arms = f"validation {names[sweep.info['measure']]}", [*sweep.info["arms"]]
    scale = alt.Scale(domain=arms, range=[style(arm, arms)[0] for arm in arms])
    color = alt.Color("arm:N", title=None, scale=scale, legend=alt.Legend(orient="bottom"))
    y, panels = alt.Y("score:Q", title=title, scale=alt.Scale(zero=False)), []
    for key in sweep.keys:
        values, best = (
            table[["arm", "score", key]].dropna().rename(columns={key: "value"})
            for table in (sweep.finished, sweep.best)
        )
        is_number = pd.api.types.is_numeric_dtype(values["value"])
        is_log = is_number and key in sweep.info["log_keys"] and values["value"].min() > 0
        kind = {"scale": alt.Scale(type="log" if is_log else "linear", zero=False)}
        x = alt.X("value:Q", title=key, **kind) if is_number else alt.X("value:N", title=key)
        dots = alt.Chart(values).mark_point(filled=True, opacity=0.6).encode(x, y, color)
        rings = alt.Chart(best).mark_point(size=160, strokeWidth=2).encode(x, y, color)
        panels.append((dots + rings).properties(width=230, height=180))
    if panels:
        caption = f"{sweep.name}: each setting against the score ({sweep.info['direction']})"
        yield Drawing(side_by_side(panels), caption)


FIGURES = (
    Figure("descent-and-robustness", descent_and_robustness, "noise"),
    Figure("errors-over-layers", errors_over_layers),
    Figure("layer-ratios", layer_ratios, "noise"),
    Figure("constraints-kept", constraints_kept),
    Figure("multipliers-and-weights", multipliers_and_weights),
    Figure("noise-kinds", noise_kinds),
    Figure("training-levels", training_levels),
    Figure("by-depth", by_depth),
    Figure("ablation", ablations, of_ablations=True),
    Figure("grid", grid, "all"),
    Figure("tradeoffs", tradeoffs, "all"),
    Figure("infeasible-runs", infeasible_runs, "all"),
    Figure("average-descent", average_descent, "all"),
)
