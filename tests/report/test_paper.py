"""Our runs beside the paper's numbers, from planted runs whose numbers are computed by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cudt.recipe import NamedRecipe
from cudt.report import paper
from cudt.report.collect import ReadRun, collect
from cudt.report.paper import Cell, ResultTable, Side
from cudt.schema import Published
from tests.report import make_run, make_scored_run, make_video_run

#: By the trapezoid rule over 0, 1 and 2: 0.85 + 0.7, and 0.9 + 0.65.
CURVES = {"constrained": {0.0: 0.9, 1.0: 0.8, 2.0: 0.6}, "erm": {0.0: 1.0, 1.0: 0.8, 2.0: 0.5}}
AUC = {"constrained": 1.55, "erm": 1.55}


@pytest.fixture(scope="module")
def planted(trained_run, tmp_path_factory) -> dict[str, ReadRun]:
    """A run of each objective on text and on video; tests change copies in memory."""
    out = tmp_path_factory.mktemp("planted")
    for objective, curve in CURVES.items():
        make_run(trained_run, out / "text", curve, objective=objective, feasible=True)
        errors = {0.0: 10.0, 1.0: 20.0, 2.0: 33.0 if objective == "erm" else 30.0}
        make_video_run(trained_run, out / "video", errors, objective=objective, feasible=True)
    found = collect([out / "text"]).runs, collect([out / "video"]).runs
    return {f"{kind}-{run.objective}": run for kind, runs in zip(("text", "video"), found, strict=True) for run in runs}


def published(run: ReadRun, model: str, dataset: str, erm: Mapping[str, Any] | None = None, **info: Any) -> ReadRun:
    """The run as one of the paper's, with other facts."""
    named = Published(model=model, dataset=dataset, erm=dict(erm or {}))
    settings = run.run.recipe.settings.model_copy(update={"published": named})
    recipe = NamedRecipe(run.recipe, settings)
    return replace(run, run=replace(run.run, recipe=recipe), info={**run.info, "layers": 3, "gamma_train": 0.0, **info})


def shifted(run: ReadRun, by: float) -> ReadRun:
    """Better or worse by so much at every level."""
    return replace(run, ood=run.ood.assign(value=run.ood["value"] + by))


def validated(run: ReadRun, *values: float) -> ReadRun:
    rows = [("gaussian", gamma, 0, run.metric, value, 10) for gamma, value in enumerate(values)]
    return replace(run, validation=pd.DataFrame(rows, columns=run.validation.columns))


def table_of(runs: Sequence[ReadRun], stem: str) -> ResultTable:
    return next(table for table in paper.result_tables(runs) if table.stem == stem)


def cell_of(runs: Sequence[ReadRun], stem: str = "accuracy-auc") -> Cell:
    """The one cell that is filled."""
    (cell,) = [cell for cell in table_of(runs, stem).cells if any(side.seeds for side in cell.sides.values())]
    return cell


def ut_on_imdb(planted: dict[str, ReadRun], **info: Any) -> list[ReadRun]:
    return [published(planted[f"text-{objective}"], "UT", "IMDb", **info) for objective in paper.SIDES]


# ---------------------------------------------------------------- the paper's numbers


def test_without_runs_the_tables_are_the_papers_and_every_cell_is_missing():
    rmse, accuracy = paper.result_tables([])
    assert [len(table.cells) for table in (rmse, accuracy)] == [105, 72]
    assert [len(table.missing) for table in (rmse, accuracy)] == [210, 144]
    assert [table.n_filled for table in (rmse, accuracy)] == [0, 0]
    assert "DUST on Avenue, L = 3, γ_train = 0: erm" in rmse.missing


def test_the_papers_numbers_stand_beside_ours_with_the_difference(planted):
    cell = cell_of(ut_on_imdb(planted))
    assert str(cell.place) == "UT on IMDb, L = 3, γ_train = 0"
    # Typed from the paper's table: 1.719 and 1.707.
    for side, printed in (("constrained", 1.719), ("erm", 1.707)):
        assert cell.sides[side].paper == printed
        assert cell.sides[side].ours == pytest.approx(AUC[side])
        assert cell.sides[side].difference == pytest.approx(AUC[side] - printed)
        assert (cell.sides[side].seeds, cell.sides[side].best_of) == (1, 0)
        assert cell.sides[side].levels == "3 levels to 2"


def test_a_filled_cell_is_no_longer_missing(planted):
    table = table_of(ut_on_imdb(planted)[:1], "accuracy-auc")
    assert table.n_filled == 1
    assert len(table.missing) == 143
    assert "UT on IMDb, L = 3, γ_train = 0: erm" in table.missing


def test_errors_are_averaged_over_the_levels(planted):
    runs = [published(planted[f"video-{objective}"], "UT", "UCSD") for objective in paper.SIDES]
    cell = cell_of(runs, "average-rmse")
    assert cell.sides["constrained"].ours == pytest.approx(20.0)
    assert cell.sides["erm"].ours == pytest.approx(21.0)
    assert cell.difference == pytest.approx(-1.0)


def test_other_noise_and_runs_that_are_not_evaluated_have_no_cell(planted):
    run = ut_on_imdb(planted)[0]
    uniform = replace(run, ood=run.ood.assign(perturbation="uniform"))
    bare = replace(run, ood=run.ood.iloc[:0])
    for table in paper.result_tables([uniform, bare]):
        assert table.is_published
        assert table.n_filled == 0


def test_pretrained_models_have_the_papers_depth_whatever_theirs_is(planted):
    runs = [published(run, "DistilBERT", "IMDb", layers=6, gamma_train=1.0) for run in ut_on_imdb(planted)]
    cell = cell_of(runs)
    assert (cell.place.model, cell.place.layers) == ("DistilBERT", 12)
    assert cell.sides["erm"].seeds == cell.sides["constrained"].seeds == 1


@pytest.mark.parametrize("info", [{"layers": 4}, {"gamma_train": 0.33}])
def test_a_depth_or_level_that_the_paper_does_not_print_is_among_the_others(info, planted):
    runs = ut_on_imdb(planted, **info)
    assert table_of(runs, "accuracy-auc").n_filled == 0
    (cell,) = table_of(runs, "accuracy-auc-other").cells
    assert cell.place.model == "reviews-ut"
    assert math.isnan(cell.sides["erm"].paper)


def test_other_recipes_are_in_a_table_of_their_own(planted):
    (cell,) = table_of([planted["text-erm"], planted["text-constrained"]], "accuracy-auc-other").cells
    assert (cell.place.model, cell.place.dataset, cell.place.gamma_train) == ("reviews-ut", "reviews", 0.4)
    assert cell.sides["erm"].ours == pytest.approx(AUC["erm"])
    assert not [table for table in paper.result_tables([planted["video-erm"]]) if table.stem == "accuracy-auc-other"]


def test_an_unconstrained_model_that_is_not_the_papers_is_among_the_others(planted):
    erm = {"descent.alpha": 0.5}
    runs = [published(planted[f"text-{name}"], "UT", "IMDb", erm) for name in paper.SIDES]
    filled = cell_of(runs)
    # The constrained one is the paper's whatever the setting is.
    assert [filled.sides[name].seeds for name in paper.SIDES] == [1, 0]
    (other,) = table_of(runs, "accuracy-auc-other").cells
    assert [other.sides[name].seeds for name in paper.SIDES] == [0, 1]
    alpha = planted["text-erm"].setting("descent.alpha")
    runs[1] = published(planted["text-erm"], "UT", "IMDb", {"descent.alpha": alpha})
    assert [cell_of(runs).sides[name].seeds for name in paper.SIDES] == [1, 1]


# ---------------------------------------------------------------- seeds and searches


def test_seeds_are_averaged(planted):
    constrained, erm = ut_on_imdb(planted)
    runs = [shifted(replace(constrained, info={**constrained.info, "seed": seed}), 0.1 * seed) for seed in range(3)]
    side = cell_of([*runs, erm]).sides["constrained"]
    # A tenth more at every level of 0 to 2 is 0.2 more of area.
    assert side.ours == pytest.approx(1.75)
    assert side.std == pytest.approx(0.2)
    assert (side.seeds, side.best_of) == (3, 0)


def variants(run: ReadRun, *losses: float) -> list[ReadRun]:
    """Variants with these validation losses, each better in the test by 0.1 than the one before."""
    return [
        shifted(replace(run, info={**run.info, "variant": f"{n}", "best": {"validation_loss": loss}}), 0.1 * n)
        for n, loss in enumerate(losses)
    ]


def seeds(run: ReadRun, *losses: float) -> list[ReadRun]:
    return [
        shifted(replace(run, info={**run.info, "seed": n, "best": {"validation_loss": loss}}), 0.1 * n)
        for n, loss in enumerate(losses)
    ]


def test_where_one_side_was_searched_both_are_the_best_by_validation_data(planted):
    constrained, erm = ut_on_imdb(planted)
    cell = cell_of([*variants(constrained, 0.3, 0.1, 0.2), *seeds(erm, 0.5, 0.6)])
    # Not the best in the test, which would be the third and the second.
    assert cell.sides["constrained"].ours == pytest.approx(AUC["constrained"] + 0.2)
    assert cell.sides["constrained"].best_of == 3
    assert cell.sides["erm"].ours == pytest.approx(AUC["erm"])
    assert cell.sides["erm"].best_of == 2
    assert [cell.sides[name].seeds for name in paper.SIDES] == [1, 1]
    assert math.isnan(cell.sides["erm"].std)


def test_the_best_is_that_of_the_metric_over_levels_where_all_were_judged_at_the_same(planted):
    run = ut_on_imdb(planted)[0]
    first, second = variants(run, 0.1, 0.9)
    judged = [validated(first, 0.9, 0.5), validated(second, 0.8, 0.7)]
    assert paper.best_by_validation(judged)[0].info["variant"] == "1"
    # Of an error, less is better.
    errors = [replace(one, info={**one.info, "metric": {"name": "RMSE", "higher_is_better": False}}) for one in judged]
    assert paper.best_by_validation(errors)[0].info["variant"] == "0"


def test_the_best_is_that_of_the_loss_where_runs_were_judged_at_other_levels_or_not_at_all(planted):
    first, second = variants(ut_on_imdb(planted)[0], 0.1, 0.9)
    uneven = [validated(first, 0.5, 0.5, 0.5), validated(second, 0.9, 0.9)]
    assert paper.best_by_validation(uneven)[0].info["variant"] == "0"
    assert paper.best_by_validation([second, first])[0].info["variant"] == "0"
    assert paper.best_by_validation([]) == []


@pytest.mark.parametrize("nothing", [math.nan, math.inf])
def test_a_run_whose_loss_is_not_a_number_is_never_the_best(nothing, planted):
    run = ut_on_imdb(planted)[0]
    for losses in ((nothing, 0.5), (0.5, nothing)):
        best = paper.best_by_validation(variants(run, *losses))[0]
        assert best.info["best"]["validation_loss"] == 0.5


# ---------------------------------------------------------------- which side is better


def scored(trained_run, out, better: str | None, *, root: bool = False) -> list[ReadRun]:
    """Both objectives with the scores of 60 examples; one side is better by far, or none is."""
    random = np.random.default_rng(0)
    noise = random.random(60)
    for objective in paper.SIDES:
        if root:
            away = 0.0 if better is None else (0.0 if objective == better else 40.0)
            base = 100 + noise if better else 100 + 50 * random.random(60)
            scores = dict.fromkeys((0.0, 1.0), base + away)
        else:
            away = 0.3 if objective == better else 0.0
            base = noise if better else random.random(60)
            scores = dict.fromkeys((0.0, 1.0), 0.5 * base + away)
        make_scored_run(trained_run, out, scores, objective=objective, root=root, feasible=True)
    return collect([out]).runs


@pytest.mark.parametrize("better", ["constrained", "erm", None])
@pytest.mark.parametrize(("root", "stem", "data"), [(False, "accuracy-auc", "IMDb"), (True, "average-rmse", "UCSD")])
def test_a_side_is_better_only_where_the_interval_leaves_out_0(better, root, stem, data, trained_run, tmp_path):
    runs = [published(run, "UT", data) for run in scored(trained_run, tmp_path, better, root=root)]
    cell = cell_of(runs, stem)
    assert cell.unit == "examples"
    assert cell.reason == ""
    marked = [name for name in paper.SIDES if cell.sides[name].is_better]
    assert marked == ([] if better is None else [better])
    assert (cell.low <= 0 <= cell.high) == (better is None)
    ours, erm = (cell.sides[name].ours for name in paper.SIDES)
    assert cell.difference == pytest.approx(ours - erm)
    # An error is better where it is less.
    if better:
        assert (ours > erm) == ((better == "constrained") != root)


def test_without_an_interval_no_side_is_better_and_the_reason_is_told(planted):
    constrained, erm = ut_on_imdb(planted)
    cell = cell_of([shifted(constrained, 0.2), erm])
    assert cell.difference == pytest.approx(0.4)
    assert math.isnan(cell.low)
    assert not any(side.is_better for side in cell.sides.values())
    assert "no scores of single examples" in cell.reason


def test_without_the_other_side_nothing_is_compared(planted):
    cell = cell_of(ut_on_imdb(planted)[:1])
    assert math.isnan(cell.difference)
    assert not cell.sides["constrained"].is_better
    assert cell.sides["erm"] == replace(Side(), paper=1.707)


# ---------------------------------------------------------------- infeasible runs, the long table


def test_an_infeasible_run_is_named_with_its_layers(planted):
    verdicts = [{"layer": layer, "verdict": word} for layer, word in enumerate(("met", "violated", "violated"), 1)]
    constrained, erm = ut_on_imdb(planted, feasible=False, verdicts=verdicts)
    table = table_of([constrained, erm], "accuracy-auc")
    told = f"{constrained.run.path.name} is infeasible at layers 2, 3"
    # ERM has no constraints to keep.
    assert table.infeasible == [f"UT on IMDb, L = 3, γ_train = 0: {told}"]
    assert cell_of([constrained, erm]).sides["erm"].infeasible == ()


def test_one_failing_layer_is_in_the_singular(planted):
    run = ut_on_imdb(planted, feasible=False, verdicts=[{"layer": 2, "verdict": "violated"}])[0]
    assert paper.failing_layers(run).endswith("is infeasible at layer 2")


def test_the_long_table_has_a_row_for_each_side(planted):
    long = table_of(ut_on_imdb(planted), "accuracy-auc").long()
    assert len(long) == 144
    mine = long[long["seeds"] > 0].set_index("objective")
    assert mine.loc["erm", ["model", "dataset", "layers", "gamma_train", "paper"]].tolist() == [
        "UT",
        "IMDb",
        3,
        0.0,
        1.707,
    ]
    assert mine.loc["constrained", "ours"] == pytest.approx(1.55)
    assert mine["is_better"].tolist() == [False, False]
