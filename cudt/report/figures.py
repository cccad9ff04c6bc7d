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
from cudt.method.constraints import TOLERANCE, allowed_losses
from cudt.report.charts import (
    GREY,
    PAPER_LEVELS,
    Drawing,
    Figure,
    Line,
    View,
    averaged,
    axis,
    best_depths,
    by_layer,
    choices,
    curve_panel,
    curves,
    groups_of,
    lines_of,
    noise_kinds,
    pair,
    panel,
    shaded,
    side_by_side,
    stacked,
    style,
    trained_at,
)
from cudt.report.compare import (
    BASELINE,
    choose,
    failing_layers,
    in_order,
    is_constrained,
    matches,
    objective_labels,
)
from cudt.report.frames import PSNR, each
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
_FEWEST_VALUES = 3
#: Panels of one figure, and points of one line over training.
_MOST_PANELS, _MOST_POINTS = 12, 60


# ---------------------------------------------------------------- one recipe


def descent_and_robustness(view: View) -> Iterator[Drawing]:
    """Loss by layer next to the metric against the noise level: the paper's Figure 1 and Llama."""
    sides = pair(view)
    if not sides:
        return
    lines = lines_of(sides)
    references = {view.frames.row(run).reference for side in sides.values() for run in side.runs}
    levels = {
        training_level(view.kind, view.frames.row(s.runs[0]).gamma_train) for s in sides.values()
    }
    at = ", ".join(f"{level:g}" for level in sorted(levels))
    losses = panel(
        *(by_layer(view, lines), lines, "layer", "test loss"),
        f"Loss by layer at {view.symbol} = {at}",
        rule=references.pop() if len(references) == 1 else None,
        rule_name="f₀",
        whole=True,
    )
    chart = side_by_side([losses, curve_panel(view, lines, f"Under {view.kind} noise")])
    paper = trained_at(view, sides, PAPER_LEVELS.get(view.metric))
    yield Drawing(
        chart, f"{view.name}: loss by layer, and {view.metric} under {view.kind} noise{paper}"
    )


def layer_ratios(view: View) -> Iterator[Drawing]:
    """Density and distribution of f_l / f_{l−1} over examples."""
    bins = view.frames.bins
    trained = [training_level(view.kind, one) for one in view.runs["gamma_train"].loc[bins["run"]]]
    mine = bins[
        (bins["perturbation"] == view.kind) & (bins["gamma"] == trained) & (bins["right"] < np.inf)
    ]
    if mine.empty:
        return
    sides = pair(view.of([run for run in view.runs.index if run in {*mine["run"]}]))
    if not sides:
        return
    lines = lines_of(sides)
    centre = (mine["left"] + mine["right"]) / 2
    density = mine.assign(x=centre, share=mine["share"] / (mine["right"] - mine["left"]))
    panels = []
    for table, y, title in (
        (density, "density", "Density"),
        (
            mine.assign(x=mine["right"], share=mine["cumulative"]),
            "share of steps below",
            "Distribution",
        ),
    ):
        rows = averaged(table, lines, "x", "share").assign(low=np.nan, high=np.nan)
        made = panel(
            rows, lines, "ratio f_l / f_(l−1) of an example", y, title, log_y=False, dots=False
        )
        at_one = alt.Chart(pd.DataFrame({"x": [1.0]})).mark_rule(color=GREY, strokeDash=[3, 3])
        panels.append(made + at_one.encode(alt.X("x:Q", title="ratio f_l / f_(l−1) of an example")))
    caption = f"{view.name}: layer ratios of single examples, {view.kind} noise of training"
    yield Drawing(side_by_side(panels), caption + trained_at(view, sides))


def errors_over_layers(view: View) -> Iterator[Drawing]:
    """The error of every layer's answer: clean, at the level of training and at the highest."""
    sides = pair(view)
    table = view.frames.layers
    table = table[(table["split"] == "test") & (table["perturbation"] == view.kind)]
    runs = [run for side in sides.values() for run in side.runs]
    shared = sorted(
        set.intersection(*({*table["gamma"][table["run"] == run]} for run in runs)) if runs else ()
    )
    if not shared:
        return
    lines, first = lines_of(sides), view.runs.loc[runs[0]]
    trained = training_level(view.kind, first["gamma_train"])
    error = 1 - table["metric"] if first["higher_is_better"] else table["metric"]
    name = f"1 − {view.metric}" if first["higher_is_better"] else view.metric
    levels = sorted({shared[0], shared[-1], *(level for level in shared if level == trained)})
    panels = [
        panel(
            averaged(table.assign(error=error)[table["gamma"] == level], lines, "layer", "error"),
            *(lines, "layer", f"test {name}"),
            f"{view.symbol} = {level:g}" + (" (training)" if level == trained else ""),
            whole=True,
            size=(230, 200),
        )
        for level in levels
    ]
    caption = f"{view.name}: {name} over layers under {view.kind} noise"
    yield Drawing(side_by_side(panels), caption + trained_at(view, sides))


def constraints_kept(view: View) -> Iterator[Drawing]:
    """Constraints kept at each noise level; every objective is judged by the constrained run's."""
    sides = pair(view)
    judges = [run for name, side in sides.items() if is_constrained(name) for run in side.runs]
    table = view.frames.layers
    table = table[(table["perturbation"] == view.kind) & (table["split"] == "test")]
    counts = []
    for run in (run for side in sides.values() for run in side.runs):
        own = view.runs.loc[run]
        seeds = [judge for judge in judges if view.frames.row(judge).seed == own["seed"]]
        judge = view.runs.loc[(seeds or judges or [run])[0]]
        for gamma, rows in table[table["run"] == run].sort_values("layer").groupby("gamma"):
            losses = rows["loss"].to_numpy()
            form = judge["descent"]["form"]
            bounds = torch.tensor(losses), judge["reference"], judge["rates"], form
            allowed = allowed_losses(*bounds).numpy()
            # A violation within two standard errors counts as kept, as in the verdicts.
            kept = losses - allowed <= TOLERANCE * rows["standard_error"].to_numpy()
            counts.append({"run": run, "gamma": gamma, "kept": kept.sum()})
    if not counts:
        return
    lines = lines_of(sides)
    rows = averaged(pd.DataFrame(counts), lines, "gamma", "kept")
    first = view.runs.loc[counts[0]["run"]]
    chart = panel(
        *(rows.assign(low=rows["low"].clip(lower=0)), lines, axis(view.kind)),
        f"constraints kept, of {first['n_layers']}",
        shade=training_level(view.kind, first["gamma_train"]),
    )
    caption = f"{view.name}: constraints kept on test data under {view.kind} noise"
    yield Drawing(chart, caption + trained_at(view, sides))


def training_levels(view: View) -> Iterator[Drawing]:
    """The metric against the noise level for each γ_train, at the depth that has most of them."""
    evaluated = view.runs[[view.kind in noises for noises in view.runs["noises"]]]
    if evaluated.empty:
        return
    counts = evaluated.groupby("n_layers")["gamma_train"].nunique()
    depth = counts[counts == counts.max()].index.max()
    deep = evaluated[evaluated["n_layers"] == depth]
    paper = deep[deep["constraints"] == ""]
    levels = sorted({*paper["gamma_train"]})
    if len(levels) < 2:
        return
    spread = np.linspace(0, len(levels) - 1, min(len(levels), 9)).round().astype(int)
    panels = []
    for level in [levels[index] for index in spread]:
        mine = view.of(paper.index[paper["gamma_train"] == level])
        lines = lines_of(pair(mine), counts=False)
        panels.append(curve_panel(mine, lines, f"γ_train = {level:g}", size=(230, 180)))
    caption = f"{view.name}: {view.metric} under {view.kind} noise by γ_train, L = {depth}"
    yield Drawing(side_by_side(panels), caption)


def noise_kinds_compared(view: View) -> Iterator[Drawing]:
    """The metric under each kind of noise: the paper's uniform and discrete noise."""
    kinds = noise_kinds(view.runs)
    if len(kinds) < 2:
        return
    panels = []
    for kind in kinds:
        mine = View(view.frames, view.name, kind)
        lines = lines_of(pair(mine), counts=False)
        panels.append(curve_panel(mine, lines, f"{kind} noise", size=(230, 200)))
    yield Drawing(
        side_by_side(panels), f"{view.name}: {view.metric} under {', '.join(kinds)} noise"
    )


def by_depth(view: View) -> Iterator[Drawing]:
    """Loss by layer and curves for each depth, and the mean and area of each curve against depth."""
    found: dict[float, dict[str, dict[int, list[int]]]] = {}
    for choice in sorted(choices(view), key=lambda one: one.worth(None)):
        for name, side in choice.sides.items():
            found.setdefault(choice.cell.gamma_train, {}).setdefault(name, {})[
                choice.cell.layers
            ] = side.runs
    deep = {
        level: {name: dict(sorted(mine.items())) for name, mine in sides.items() if len(mine) > 1}
        for level, sides in found.items()
    }
    if not any(deep.values()):
        return
    # The paper's figures are at γ_train = 0.
    level = max(deep, key=lambda one: (len(deep[one]), one == 0, one))
    called = objective_labels(deep[level])
    panels = []
    for objective in in_order(deep[level]):
        parts = {f"L = {depth}": runs for depth, runs in deep[level][objective].items()}
        lines = shaded(parts, style(objective)[1])
        losses = by_layer(view, lines)
        panels.append(panel(losses, lines, "layer", "test loss", called[objective], whole=True))
        panels.append(curve_panel(view, lines, f"{called[objective]}, {view.kind} noise"))
    sums = [
        _over_levels(view, objective, deep[level][objective]) for objective in in_order(deep[level])
    ]
    table = pd.concat(sums)
    lines = [Line(called[name], [], *style(name)) for name in in_order(deep[level])]
    for y, title in (("mean", f"mean {view.metric} over levels"), ("auc", "area under the curve")):
        rows = table[table["quantity"] == y].replace({"line": called})
        panels.append(
            panel(rows, lines, "layers L", title, f"γ_train = {level:g}", whole=True, bars=True)
        )
    caption = f"{view.name}: by depth, γ_train = {level:g}, {view.kind} noise"
    charts = [side_by_side(panels[i : i + 2]) for i in range(0, len(panels), 2)]
    yield Drawing(stacked(charts), caption)


def _over_levels(view: View, objective: str, depths: dict[int, list[int]]) -> pd.DataFrame:
    """Mean and area of the curves of each depth, with one standard deviation over seeds."""
    rows = []
    for depth, runs in depths.items():
        per_run = []
        for run in runs:
            curve = view.frames.curve(run, view.kind)
            wanted = Quantities.over([*curve], view.kind, view.frames.row(run).gamma_train)
            per_run.append(wanted.named(np.array([*curve.values()])))
        for quantity in ("mean", "auc"):
            values = np.array([one[quantity] for one in per_run])
            mean, spread = values.mean(), values.std(ddof=1) if len(values) > 1 else np.nan
            ends = {"y": mean, "low": mean - spread, "high": mean + spread}
            rows.append({"line": objective, "x": depth, "quantity": quantity, **ends})
    return pd.DataFrame(rows)


def ablations(view: View) -> Iterator[Drawing]:
    """The metric against one setting, all else equal, with error bars over seeds; and a line for
    each value: the paper's ablations of α and η₂.
    """
    evaluated = view.runs[[view.kind in noises for noises in view.runs["noises"]]]
    constrained = evaluated[evaluated["is_constrained"]]
    for key, mine in _series(constrained).items():
        parts = {
            f"{symbol(key)} = {value_text(value)}": [*runs.index] for value, runs in mine.items()
        }
        lines = shaded(parts)
        rows = curves(view, lines)
        shared = sorted(set.intersection(*({*part["x"]} for _, part in rows.groupby("line"))))
        if not shared or rows["line"].nunique() < len(parts):
            continue
        # As in the paper: clean, and at a half and at three quarters of the highest level.
        wanted = (shared[0], shared[-1] * 1.05 / 2.1, shared[-1] * 1.65 / 2.1)
        nearest = np.abs(np.subtract.outer(wanted, shared)).argmin(1)
        levels = sorted({shared[index] for index in nearest})
        x = dict(zip(parts, mine, strict=True))
        at = rows.assign(
            line=[f"{view.symbol} = {g:g}" for g in rows["x"]],
            gamma=rows["x"],
            x=rows["line"].map(x),
        )
        names = shaded({f"{view.symbol} = {level:g}": [] for level in levels})
        is_log = min(mine) > 0 and max(mine) > 20 * min(mine)
        title = symbol(key) if symbol(key) == key else f"{symbol(key)} ({key})"
        effect = panel(
            *(
                at[at["gamma"].isin(levels)],
                names,
                title,
                f"test {view.metric}",
                "Against the setting",
            ),
            log_x=is_log,
            bars=True,
        )
        losses = panel(
            *(
                by_layer(view, lines, split="validation"),
                lines,
                "layer",
                "validation loss",
                "Loss by layer",
            ),
            whole=True,
        )
        values = side_by_side([losses, curve_panel(view, lines, f"Under {view.kind} noise")])
        yield Drawing(
            stacked([effect, values]),
            f"{view.name}: {view.metric} against {title}, all else equal",
            file_name(key),
        )


def _series(runs: pd.DataFrame) -> dict[str, dict[float, pd.DataFrame]]:
    """The settings of which groups have at least three values, all else equal, each with the runs
    by value; of several series, the one with most values, then most runs.
    """
    groups = groups_of(runs)
    settings = [group["settings"].iloc[0] for group in groups]
    keys = [k for k in dict.fromkeys(k for one in settings for k in one) if k not in _NOT_ABLATED]
    series = {}
    for key in keys:
        if len({one.get(key) for one in settings}) < _FEWEST_VALUES:
            continue
        found: dict[Any, dict[float, pd.DataFrame]] = {}
        for one, group in zip(settings, groups, strict=True):
            value = one.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool):
                others = frozenset(item for item in one.items() if item[0] != key)
                found.setdefault((group["objective"].iloc[0], others), {})[value] = group
        best = max(
            found.values(), key=lambda mine: (len(mine), sum(map(len, mine.values()))), default={}
        )
        if len(best) >= _FEWEST_VALUES:
            series[key] = dict(sorted(best.items()))
    return series


def multipliers_and_weights(view: View) -> Iterator[Drawing]:
    """λ_l and the effective weight w_l = ∂J/∂f_l of each layer over the training of one seed.

    Where a weight is negative, an update raises that layer's loss: the cheap way to meet the next
    layer's constraint.
    """
    for name, side in pair(view).items():
        if not is_constrained(name):
            continue
        run = side.runs[0]
        history = view.frames.history(run)
        history = history[history["split"] == "train"]
        panels = []
        for logged, y, title in (
            ("multiplier", "multiplier λ", "Multipliers"),
            ("weight", "weight w", "Effective weights of the layer losses"),
        ):
            mine = history[history["name"] == logged]
            layers = sorted({*mine["layer"]})
            steps = sorted({*mine["step"]})
            kept = (
                {steps[i] for i in np.linspace(0, len(steps) - 1, _MOST_POINTS).round().astype(int)}
                if steps
                else set()
            )
            lines = shaded({f"layer {layer}": [] for layer in layers})
            thin = mine[mine["step"].isin(kept)]
            rows = pd.DataFrame(
                {
                    "line": [f"layer {one}" for one in thin["layer"]],
                    "x": thin["step"],
                    "y": thin["value"],
                }
            )
            if len(rows):
                rows = rows.assign(low=np.nan, high=np.nan)
                panels.append(
                    panel(rows, lines, "update", y, title, rule=0, dots=False, log_y=False)
                )
        if panels:
            seed = view.frames.row(run).seed
            caption = f"{view.name}: multipliers and weights over training, {name}, seed {seed}"
            yield Drawing(side_by_side(panels), caption + trained_at(view, {name: side}))


# ---------------------------------------------------------------- all recipes


def grid(view: View) -> Iterator[Drawing]:
    """The metric against the noise level of every recipe: the paper's grids of text and video."""
    together: dict[tuple[str, str], list[View]] = {}
    for one in view.families():
        together.setdefault((one.metric, one.kind), []).append(one)
    for (metric, kind), members in together.items():
        members = sorted(members, key=lambda one: (_model(one), _task(one), one.name))
        pages = [members[i : i + _MOST_PANELS] for i in range(0, len(members), _MOST_PANELS)]
        for number, page in enumerate(pages if len(members) > 1 else (), 1):
            wanted = _GRID_LEVELS.get(metric)
            panels = []
            for one in page:
                sides = best_depths(one, wanted)
                lines = lines_of(sides, counts=False)
                title = [one.name, _about(one, sides)]
                panels.append(curve_panel(one, lines, title, size=(230, 170)))
            paper = "" if wanted is None else f"; the paper's figure has γ_train = {wanted:g}"
            caption = (
                f"{metric} under {kind} noise by recipe, each objective at its best depth{paper}"
            )
            name = f"{file_name(metric)}-{kind}" + (f"-{number}" if len(pages) > 1 else "")
            yield Drawing(side_by_side(panels), caption, name)


def _model(view: View) -> str:
    first = view.runs.iloc[0]
    return value_text(first["pretrained"] or first["model_name"])


def _task(view: View) -> str:
    return value_text(view.runs["task"].iloc[0]["name"])


def _about(view: View, sides: dict[str, Any]) -> str:
    """`γ_train = 0.2, L = 12, 3 seeds`."""
    runs = [run for side in sides.values() for run in side.runs]
    depths = ", ".join(f"{depth}" for depth in sorted({*view.runs.loc[runs, "n_layers"]}))
    how = ", ".join(dict.fromkeys(side.how for side in sides.values()))
    return (
        f"γ_train = {view.frames.row(runs[0]).gamma_train:g}, L = {depths}, {how}" if runs else ""
    )


def tradeoffs(view: View) -> Iterator[Drawing]:
    """The three settings in which the paper shows a trade-off between ID and OOD quality."""
    panels = []
    for model, dataset, layers, gamma in _TRADEOFFS:
        mine = view.runs[
            [
                row.is_published
                and (row.published["model"], row.published["dataset"]) == (model, dataset)
                for row in each(view.runs)
            ]
        ]
        deep = mine[mine["n_layers"] == layers]
        for one in view.of((deep if len(deep) else mine).index).families() if len(mine) else ():
            sides = pair(one, gamma)
            lines = lines_of(sides, counts=False)
            panels.append(
                curve_panel(
                    one, lines, [f"{model} on {dataset}", _about(one, sides)], size=(230, 180)
                )
            )
    if panels:
        paper = ", ".join(
            f"{model} on {data}: L = {depth}, γ_train = {g:g}"
            for model, data, depth, g in _TRADEOFFS
        )
        yield Drawing(
            side_by_side(panels), f"In and out of distribution in the paper's settings ({paper})"
        )


def infeasible_runs(view: View) -> Iterator[Drawing]:
    """Of each recipe the run that violates most constraints, next to ERM: losses with what each
    layer was allowed, the metric under noise, and PSNR where the task measures it.
    """

    def rank(row: Any) -> tuple[bool, int, int]:
        return (
            bool(row.noises),
            len(row.failing.get("violated", [])),
            len(row.failing.get("relaxed", [])),
        )

    worst: dict[str, Any] = {}
    for row in each(view.runs):
        if row.failing and (row.family not in worst or rank(row) > rank(worst[row.family])):
            worst[row.family] = row
    rows = []
    for row in sorted(worst.values(), key=rank, reverse=True)[:4]:
        kind = row.kind if row.kind in row.noises else next(iter(row.noises), row.kind)
        one = View(view.frames, row.family, kind)
        metric = row.metric.replace("_", " ")
        sides = {row.objective: [row.Index]}
        for match in matches(view.runs[view.runs["cell"] == row.cell]):
            erm = choose(view.runs.loc[match], kind).get(BASELINE) if row.Index in match else None
            if erm and erm.runs:
                own = [run for run in erm.runs if view.frames.row(run).seed == row.seed]
                sides[BASELINE] = [(own or erm.runs)[0]]
        lines = [Line(name, runs, *style(name)) for name, runs in sides.items()]
        panels = [_verdicts(one, row, lines)]
        if row.noises:
            points = one.frames.points
            has_psnr = points.loc[points["run"] == row.Index, "psnr"].notna().any()
            y, name = ("psnr", f"{PSNR} (dB)") if has_psnr else ("value", metric)
            found = averaged(points[points["perturbation"] == kind], lines, "gamma", y)
            trained = training_level(kind, row.gamma_train)
            panels.append(
                panel(
                    found,
                    lines,
                    axis(kind),
                    f"test {name}",
                    "Under noise",
                    shade=trained,
                    size=(230, 190),
                )
            )
            layers = by_layer(one, lines, "psnr" if has_psnr else "metric")
            panels.append(
                panel(
                    layers, lines, "layer", f"test {name}", "By layer", whole=True, size=(230, 190)
                )
            )
        rows.append(side_by_side(panels))
    if rows:
        caption = (
            "Infeasible runs next to ERM: of each recipe, the run with most violated layers (grey: loss "
            "allowed, ± 2 standard errors)"
        )
        yield Drawing(alt.vconcat(*rows), caption)


def _verdicts(view: View, row: Any, lines: Sequence[Line]) -> Any:
    """Validation losses by layer, what each was allowed ± 2 standard errors, and what fails."""
    found = [
        {"line": line.label, "x": one.layer, "y": one.loss, "low": np.nan, "high": np.nan}
        for line in lines
        for one in view.frames.row(line.runs[0]).verdicts
    ]
    failing = failing_layers(row.failing)
    title = [view.name, failing if len(failing) <= 44 else f"{failing[:43]}…"]
    chart = panel(
        pd.DataFrame(found), lines, "layer", "validation loss", title, whole=True, size=(230, 190)
    )
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
        table = one.frames.layers
        table = table[(table["split"] == "test") & (table["perturbation"] == one.kind)].sort_values(
            "layer"
        )
        for run, rows in table.groupby("run"):
            own = one.runs.loc[run]
            mine = rows[rows["gamma"] == training_level(one.kind, own["gamma_train"])]
            ratios = np.array([1.0, *(mine["loss"] / own["reference"])])
            if len(ratios) > 1 and (ratios > 0).all() and np.isfinite(ratios).all():
                log = np.interp(steps, np.linspace(0, 1, len(ratios)), np.log(ratios))
                logs.append({"metric": own["metric"], "objective": own["objective"], "log": log})
    if len(logs) < 2:
        return
    panels, found = [], pd.DataFrame(logs)
    for metric, mine in found.groupby("metric"):
        rows, lines = [], []
        for objective in in_order(mine["objective"]):
            every = np.stack([*mine.loc[mine["objective"] == objective, "log"]])
            mean, spread = (
                every.mean(0),
                every.std(0, ddof=1) if len(every) > 1 else np.full(25, np.nan),
            )
            label = objective_labels([objective])[objective]
            lines.append(Line(label, [], *style(objective, mine["objective"])))
            ends = {"y": np.exp(mean), "low": np.exp(mean - spread), "high": np.exp(mean + spread)}
            rows.append(pd.DataFrame({"line": label, "x": steps, **ends}))
        counts = ", ".join(
            f"{n} {name}" for name, n in mine["objective"].value_counts(sort=False).items()
        )
        title, everything = [str(metric).replace("_", " "), counts], pd.concat(rows)
        panels.append(
            panel(
                everything,
                lines,
                "relative depth l / L",
                "test loss f_l / f₀",
                title,
                rule=1,
                dots=False,
                log_y=everything["y"].max() > 4 * everything["y"].min(),
            )
        )
    yield Drawing(
        side_by_side(panels),
        f"Average descent over {len(logs)} runs, each at its training noise level",
    )


FIGURES = (
    Figure("descent-and-robustness", descent_and_robustness, "noise"),
    Figure("errors-over-layers", errors_over_layers),
    Figure("layer-ratios", layer_ratios, "noise"),
    Figure("constraints-kept", constraints_kept),
    Figure("multipliers-and-weights", multipliers_and_weights),
    Figure("noise-kinds", noise_kinds_compared),
    Figure("training-levels", training_levels),
    Figure("by-depth", by_depth),
    Figure("ablation", ablations, of_ablations=True),
    Figure("grid", grid, "all"),
    Figure("tradeoffs", tradeoffs, "all"),
    Figure("infeasible-runs", infeasible_runs, "all"),
    Figure("average-descent", average_descent, "all"),
)
