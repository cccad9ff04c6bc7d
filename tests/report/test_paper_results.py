"""Our runs next to the paper's numbers, from planted runs whose numbers are computed by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cudt.config import recipe as recipes
from cudt.report.collect import ReadRun, collect
from cudt.report.comparable import SIDES
from cudt.report.paper_results import Result, ResultTable, result_tables
from cudt.report.published import PAPER_TABLES, is_published
from tests.report import make_run, make_scored_run, make_video_run, with_info
from tests.report.figures import variant_of

#: By the trapezoid rule over 0, 1 and 2: 0.85 + 0.7, and 0.9 + 0.65.
CURVES = {"constrained": {0.0: 0.9, 1.0: 0.8, 2.0: 0.6}, "erm": {0.0: 1.0, 1.0: 0.8, 2.0: 0.5}}
AUC = {"constrained": 1.55, "erm": 1.55}
#: The verdicts of a feasible run.
KEPT = [{"layer": 1, "loss": 0.5, "allowed": 0.6, "violation": -0.1, "standard_error": 0.01, "verdict": "met"}]
#: Typed from the paper's table.
PRINTED = {"constrained": 1.719, "erm": 1.707}


@pytest.fixture(scope="module")
def planted(trained_run, tmp_path_factory) -> dict[str, ReadRun]:
    """A run of each objective on text and on video; tests change copies in memory."""
    out = tmp_path_factory.mktemp("planted")
    for objective, curve in CURVES.items():
        make_run(trained_run, out / "text", curve, objective=objective, feasible=True, verdicts=KEPT)
        errors = {0.0: 10.0, 1.0: 20.0, 2.0: 33.0 if objective == "erm" else 30.0}
        make_video_run(trained_run, out / "video", errors, objective=objective, feasible=True, verdicts=KEPT)
    found = collect([out / "text"]).runs, collect([out / "video"]).runs
    return {f"{kind}-{run.objective}": run for kind, runs in zip(("text", "video"), found, strict=True) for run in runs}


def published(run: ReadRun, recipe: str, *overrides: str, **info: Any) -> ReadRun:
    """The run as one of a recipe that comes with cudt, with other facts."""
    loaded = recipes.load(recipe, overrides, objective=run.objective, seed=run.seed)
    changed = with_info(run, **{"recipe": recipe, "layers": 3, "gamma_train": 0.0, **info})
    return replace(changed, run=replace(run.run, recipe=loaded))


def evaluated(run: ReadRun, curve: Mapping[float, float], kind: str = "gaussian") -> ReadRun:
    """The run with another curve."""
    rows = [(kind, gamma, 0, run.metric, value, 40) for gamma, value in curve.items()]
    return replace(run, ood=pd.DataFrame(rows, columns=run.ood.columns))


def unevaluated(run: ReadRun) -> ReadRun:
    return replace(run, ood=run.ood.iloc[:0])


def shifted(run: ReadRun, by: float) -> ReadRun:
    """The run with this much added at every level."""
    return replace(run, ood=run.ood.assign(value=run.ood["value"] + by))


def validated(run: ReadRun, *values: float) -> ReadRun:
    rows = [("gaussian", gamma, 0, run.metric, value, 10) for gamma, value in enumerate(values)]
    return replace(run, validation=pd.DataFrame(rows, columns=run.validation.columns))


def variants(run: ReadRun, *losses: float) -> list[ReadRun]:
    """Variants with these validation losses, each better in the test by 0.1 than the one before."""
    return [
        shifted(with_info(run, variant=f"{n}", best={"validation_loss": loss}), 0.1 * n)
        for n, loss in enumerate(losses)
    ]


def seeds(run: ReadRun, *losses: float) -> list[ReadRun]:
    return [shifted(with_info(run, seed=n, best={"validation_loss": loss}), 0.1 * n) for n, loss in enumerate(losses)]


def table_of(runs: Sequence[ReadRun], stem: str) -> ResultTable:
    return next(table for table in result_tables(runs) if table.stem == stem)


def result_of(runs: Sequence[ReadRun], stem: str = "accuracy-auc") -> Result:
    """The one result with a run."""
    (result,) = [
        result for result in table_of(runs, stem).results if any(side.is_filled for side in result.sides.values())
    ]
    return result


def counts(result: Result) -> list[int]:
    """The number of runs on each side."""
    return [len(result.sides[name].chosen.runs) for name in SIDES]


def ut_on_imdb(planted: dict[str, ReadRun], *overrides: str, **info: Any) -> list[ReadRun]:
    return [published(planted[f"text-{objective}"], "imdb-ut", *overrides, **info) for objective in SIDES]


# ---------------------------------------------------------------- the paper's numbers


def test_without_runs_the_tables_are_the_papers_and_every_cell_is_missing():
    rmse, accuracy = result_tables([])
    assert [len(table.results) for table in (rmse, accuracy)] == [105, 72]
    assert [len(table.missing) for table in (rmse, accuracy)] == [210, 144]
    assert [table.n_filled for table in (rmse, accuracy)] == [0, 0]
    assert "DUST on Avenue, L = 3, γ_train = 0: erm" in rmse.missing


def test_the_papers_number_is_shown_with_the_difference_to_ours(planted):
    levels = PAPER_TABLES[1].levels
    assert (len(levels), levels[0], levels[-1]) == (15, 0, 2.1)
    # Under a flat line of 0.8 from 0 to 2.1.
    result = result_of([evaluated(run, dict.fromkeys(levels, 0.8)) for run in ut_on_imdb(planted)])
    assert str(result.cell) == "UT on IMDb, L = 3, γ_train = 0"
    for name, printed in PRINTED.items():
        side = result.sides[name]
        assert (side.paper, side.levels, side.is_on_its_levels) == (printed, levels, True)
        assert side.ours == pytest.approx(1.68)
        assert side.difference == pytest.approx(1.68 - printed)
        assert (side.chosen.seeds, side.chosen.best_of) == (1, 0)


def test_at_other_levels_than_the_papers_there_is_no_difference_to_it(planted):
    result = result_of(ut_on_imdb(planted))
    for name, printed in PRINTED.items():
        side = result.sides[name]
        assert (side.paper, side.levels, side.is_on_its_levels) == (printed, (0.0, 1.0, 2.0), False)
        assert side.ours == pytest.approx(AUC[name])
        assert math.isnan(side.difference)


def test_with_one_side_at_fewer_levels_neither_is_compared_with_the_paper(planted):
    whole, part = (evaluated(run, dict.fromkeys(PAPER_TABLES[1].levels, 0.8)) for run in ut_on_imdb(planted))
    part = replace(part, ood=part.ood[part.ood["gamma"] <= 1.5])
    assert not any(side.is_on_its_levels for side in result_of([whole, part]).sides.values())
    assert result_of([whole]).sides["constrained"].is_on_its_levels


def test_a_filled_cell_is_no_longer_missing(planted):
    table = table_of(ut_on_imdb(planted)[:1], "accuracy-auc")
    assert table.n_filled == 1
    assert len(table.missing) == 143
    assert "UT on IMDb, L = 3, γ_train = 0: erm" in table.missing


def test_errors_are_averaged_over_the_levels(planted):
    runs = [published(planted[f"video-{objective}"], "ucsd-ut") for objective in SIDES]
    result = result_of(runs, "average-rmse")
    assert result.sides["constrained"].ours == pytest.approx(20.0)
    assert result.sides["erm"].ours == pytest.approx(21.0)
    assert result.difference.difference == pytest.approx(-1.0)


def test_other_noise_and_runs_that_are_not_evaluated_fill_no_cell(planted):
    run = ut_on_imdb(planted)[0]
    uniform = replace(run, ood=run.ood.assign(perturbation="uniform"))
    for table in result_tables([uniform, with_info(unevaluated(run), seed=1)]):
        assert table.is_published
        assert table.n_filled == 0


def test_a_side_that_is_not_evaluated_names_the_command(planted):
    constrained, erm = ut_on_imdb(planted)
    (found,) = [
        line for line in table_of([constrained, unevaluated(erm)], "accuracy-auc").missing if "eval-ood" in line
    ]
    assert found == f"UT on IMDb, L = 3, γ_train = 0: erm; not evaluated: cudt eval-ood {erm.run.path}"


def test_pretrained_models_are_in_the_row_of_the_depth_that_the_paper_prints(planted):
    runs = [published(planted[f"text-{name}"], "imdb-distilbert", layers=6, gamma_train=1.0) for name in SIDES]
    result = result_of(runs)
    assert (result.cell.model, result.cell.layers) == ("DistilBERT", 12)
    assert counts(result) == [1, 1]


# ---------------------------------------------------------------- what is not the paper's


@pytest.mark.parametrize("info", [{"layers": 4}, {"gamma_train": 0.33}])
def test_a_depth_or_level_that_the_paper_does_not_print_is_among_the_others(info, planted):
    runs = ut_on_imdb(planted, **info)
    assert table_of(runs, "accuracy-auc").n_filled == 0
    (result,) = table_of(runs, "accuracy-auc-other").results
    assert result.cell.model == "imdb-ut"
    assert math.isnan(result.sides["erm"].paper)


def test_other_recipes_are_in_a_table_of_their_own(planted):
    (result,) = table_of([planted["text-erm"], planted["text-constrained"]], "accuracy-auc-other").results
    assert (result.cell.model, result.cell.dataset, result.cell.gamma_train) == ("reviews-ut", "reviews", 0.4)
    assert result.sides["erm"].ours == pytest.approx(AUC["erm"])
    assert not [table for table in result_tables([planted["video-erm"]]) if table.stem == "accuracy-auc-other"]


def test_cells_that_differ_in_their_loss_or_weights_are_named_apart(planted):
    runs = [planted["text-erm"], planted["text-constrained"]]
    brier = [variant_of(run, "brier", {"task": {"loss": "brier"}}) for run in runs]
    last = [variant_of(run, "last", {"training": {"select": "last"}}) for run in runs]
    for others, names in (
        (brier, ["reviews loss=brier", "reviews loss=cross_entropy"]),
        (last, ["reviews select=best", "reviews select=last"]),
    ):
        apart = [replace(run, run=replace(run.run, path=run.run.path.with_name("other"))) for run in others]
        results = table_of([*runs, *apart], "accuracy-auc-other").results
        assert sorted(result.cell.dataset for result in results) == names


@pytest.mark.parametrize("override", ["task.limit.train=100", "training.epochs=1", "task.max_length=64"])
def test_a_recipe_of_the_papers_with_other_settings_is_among_the_others(override, planted):
    runs = ut_on_imdb(planted, override)
    assert not any(is_published(run) for run in runs)
    assert table_of(runs, "accuracy-auc").n_filled == 0
    (result,) = table_of(runs, "accuracy-auc-other").results
    assert counts(result) == [1, 1]


def dust_on_avenue(planted: dict[str, ReadRun]) -> tuple[ReadRun, ReadRun, ReadRun]:
    """Constrained; unconstrained as the paper has it, with one dictionary for all layers; and the fair pair's."""
    constrained, erm = (planted[f"video-{name}"] for name in SIDES)
    tied = published(erm, "avenue-dust", "model.tie_layers=true", variant="tied")
    untied = published(shifted(erm, 3), "avenue-dust", variant="untied")
    elsewhere = replace(untied.run, path=untied.run.path.with_name("erm-untied"))
    return published(constrained, "avenue-dust"), tied, replace(untied, run=elsewhere)


def test_the_papers_unconstrained_model_has_the_settings_that_the_recipe_names(planted):
    constrained, tied, untied = dust_on_avenue(planted)
    # Typed from the paper's table.
    result = result_of([constrained, tied, untied], "average-rmse")
    assert [result.sides[name].paper for name in SIDES] == [21.145, 19.679]
    assert [result.sides[name].chosen.runs for name in SIDES] == [[constrained], [tied]]


def test_erm_with_other_model_settings_is_shown_with_the_constrained_runs(planted):
    constrained, tied, untied = dust_on_avenue(planted)
    (pair,) = table_of([constrained, tied, untied], "average-rmse-other").results
    assert [pair.sides[name].chosen.runs for name in SIDES] == [[constrained], [untied]]
    assert pair.difference.difference == pytest.approx(-4)
    assert not [one for one in result_tables([constrained, tied]) if one.stem == "average-rmse-other"]


# ---------------------------------------------------------------- seeds and searches


def test_seeds_are_averaged(planted):
    constrained, erm = ut_on_imdb(planted)
    side = result_of([*seeds(constrained, 0.3, 0.3, 0.3), erm]).sides["constrained"]
    # A tenth more at every level of 0 to 2 is 0.2 more of area.
    assert side.ours == pytest.approx(1.75)
    assert side.std == pytest.approx(0.2)
    assert side.chosen.how == "3 seeds"


def test_where_one_side_was_searched_both_are_the_best_by_validation_data(planted):
    constrained, erm = ut_on_imdb(planted)
    result = result_of([*variants(constrained, 0.3, 0.1, 0.2), *seeds(erm, 0.5, 0.6)])
    # Not the best in the test, which would be the third and the second.
    assert result.sides["constrained"].ours == pytest.approx(AUC["constrained"] + 0.2)
    assert result.sides["erm"].ours == pytest.approx(AUC["erm"])
    assert [result.sides[name].chosen.how for name in SIDES] == ["best of 3", "best of 2"]
    assert math.isnan(result.sides["erm"].std)
    assert not result.is_even


def test_if_the_best_run_is_not_evaluated_its_side_is_empty_and_names_the_command(planted):
    constrained, erm = ut_on_imdb(planted)
    first, second = variants(constrained, 0.3, 0.1)
    runs = [first, unevaluated(second), erm]
    assert counts(result_of(runs)) == [0, 1]
    found = f"the best by validation data is not evaluated: cudt eval-ood {second.run.path}"
    assert f"UT on IMDb, L = 3, γ_train = 0: constrained; {found}" in table_of(runs, "accuracy-auc").missing
    assert result_of(runs).difference.reason == found


# ---------------------------------------------------------------- which side is better


def scored(trained_run, out, better: str | None, *, root: bool = False) -> list[ReadRun]:
    """Both objectives with the scores of 60 examples; one side is better by far, or none is."""
    random = np.random.default_rng(0)
    noise = random.random(60)
    for objective in SIDES:
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
@pytest.mark.parametrize(
    ("root", "stem", "recipe"), [(False, "accuracy-auc", "imdb-ut"), (True, "average-rmse", "ucsd-ut")]
)
def test_a_side_is_better_only_where_the_interval_leaves_out_0(better, root, stem, recipe, trained_run, tmp_path):
    runs = [published(run, recipe) for run in scored(trained_run, tmp_path, better, root=root)]
    result = result_of(runs, stem)
    between = result.difference
    assert (between.unit, between.reason, between.better) == ("examples", "", better or "")
    marked = [name for name in SIDES if result.sides[name].is_better]
    assert marked == ([] if better is None else [better])
    assert (between.low <= 0 <= between.high) == (better is None)
    ours, erm = (result.sides[name].ours for name in SIDES)
    assert between.difference == pytest.approx(ours - erm)
    # An error is better where it is less.
    if better:
        assert (ours > erm) == ((better == "constrained") != root)


def test_without_an_interval_no_side_is_better_and_the_reason_is_reported(planted):
    constrained, erm = ut_on_imdb(planted)
    result = result_of([shifted(constrained, 0.2), erm])
    assert result.difference.difference == pytest.approx(0.4)
    assert math.isnan(result.difference.low)
    assert not any(side.is_better for side in result.sides.values())
    assert "no scores of single examples" in result.difference.reason


def test_without_the_other_side_nothing_is_compared(planted):
    result = result_of(ut_on_imdb(planted)[:1])
    assert math.isnan(result.difference.difference)
    assert not result.sides["constrained"].is_better
    erm = result.sides["erm"]
    assert (erm.is_filled, erm.paper, erm.levels) == (False, 1.707, ())
    assert math.isnan(erm.ours)


# ---------------------------------------------------------------- infeasible runs, the long table


def test_an_infeasible_run_is_named_with_its_layers(planted):
    verdicts = [{"layer": layer, "verdict": word} for layer, word in enumerate(("met", "violated", "violated"), 1)]
    constrained, erm = ut_on_imdb(planted, feasible=False, verdicts=verdicts)
    table = table_of([constrained, erm], "accuracy-auc")
    # ERM has no constraints to keep.
    assert table.infeasible == ["UT on IMDb, L = 3, γ_train = 0: seed 0: violated at layers 2–3"]
    in_csv = table.long()["infeasible"]
    assert in_csv[in_csv != ""].tolist() == [f"{constrained.run.path.name}: violated at layers 2–3"]
    assert result_of([constrained, erm]).sides["erm"].chosen.infeasible == []


def test_the_long_table_has_a_row_for_each_side(planted):
    long = table_of(ut_on_imdb(planted), "accuracy-auc").long()
    assert len(long) == 144
    mine = long[long["seeds"] > 0].set_index("objective")
    found = mine.loc["erm", ["model", "dataset", "layers", "gamma_train", "paper", "levels"]].tolist()
    assert found == ["UT", "IMDb", 3, 0.0, 1.707, "0 1 2"]
    assert mine.loc["constrained", "ours"] == pytest.approx(1.55)
    assert mine["is_better"].tolist() == [False, False]
    assert mine["difference"].isna().all()
    assert all("no scores of single examples" in reason for reason in mine["reason"])
