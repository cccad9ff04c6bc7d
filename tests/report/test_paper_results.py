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

#: By the trapezoid rule over 0, 1 and 2: 0.85 + 0.7, and 0.9 + 0.65.
CURVES = {"constrained": {0.0: 0.9, 1.0: 0.8, 2.0: 0.6}, "erm": {0.0: 1.0, 1.0: 0.8, 2.0: 0.5}}
#: The verdicts of a feasible run.
KEPT = [
    {
        "layer": 1,
        "loss": 0.5,
        "allowed": 0.6,
        "violation": -0.1,
        "standard_error": 0.01,
        "verdict": "met",
    }
]
#: Typed from the paper's table.
PRINTED = {"constrained": 1.719, "erm": 1.707}


@pytest.fixture(scope="module")
def planted(trained_run, tmp_path_factory) -> dict[str, ReadRun]:
    """A run of each objective on text and on video; tests change copies in memory."""
    out = tmp_path_factory.mktemp("planted")
    for objective, curve in CURVES.items():
        make_run(
            trained_run, out / "text", curve, objective=objective, feasible=True, verdicts=KEPT
        )
        errors = {0.0: 10.0, 1.0: 20.0, 2.0: 33.0 if objective == "erm" else 30.0}
        make_video_run(
            trained_run, out / "video", errors, objective=objective, feasible=True, verdicts=KEPT
        )
    found = collect([out / "text"]).runs, collect([out / "video"]).runs
    return {
        f"{kind}-{run.objective}": run
        for kind, runs in zip(("text", "video"), found, strict=True)
        for run in runs
    }


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
    return [
        shifted(with_info(run, seed=n, best={"validation_loss": loss}), 0.1 * n)
        for n, loss in enumerate(losses)
    ]


def table_of(runs: Sequence[ReadRun], stem: str) -> ResultTable:
    return next(table for table in result_tables(runs) if table.stem == stem)


def result_of(runs: Sequence[ReadRun], stem: str = "accuracy-auc") -> Result:
    """The one result with a run."""
    (result,) = [
        result
        for result in table_of(runs, stem).results
        if any(side.is_filled for side in result.sides.values())
    ]
    return result


def counts(result: Result) -> list[int]:
    """The number of runs on each side."""
    return [len(result.sides[name].chosen.runs) for name in SIDES]


def ut_on_imdb(planted: dict[str, ReadRun], *overrides: str, **info: Any) -> list[ReadRun]:
    return [
        published(planted[f"text-{objective}"], "imdb-ut", *overrides, **info)
        for objective in SIDES
    ]


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


def test_pretrained_models_are_in_the_row_of_the_depth_that_the_paper_prints(planted):
    runs = [
        published(planted[f"text-{name}"], "imdb-distilbert", layers=6, gamma_train=1.0)
        for name in SIDES
    ]
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


@pytest.mark.parametrize(
    "override", ["task.limit.train=100", "training.epochs=1", "task.max_length=64"]
)
def test_a_recipe_of_the_papers_with_other_settings_is_among_the_others(override, planted):
    runs = ut_on_imdb(planted, override)
    assert not any(is_published(run) for run in runs)
    assert table_of(runs, "accuracy-auc").n_filled == 0
    (result,) = table_of(runs, "accuracy-auc-other").results
    assert counts(result) == [1, 1]


def dust_on_avenue(planted: dict[str, ReadRun]) -> tuple[ReadRun, ReadRun, ReadRun]:
    """Constrained; unconstrained as the paper has it, with one dictionary for all layers; and the
    fair pair's."""
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
    ("root", "stem", "recipe"),
    [(False, "accuracy-auc", "imdb-ut"), (True, "average-rmse", "ucsd-ut")],
)
def test_a_side_is_better_only_where_the_interval_leaves_out_0(
    better, root, stem, recipe, trained_run, tmp_path
):
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


# ---------------------------------------------------------------- infeasible runs, the long table


def test_the_long_table_has_a_row_for_each_side(planted):
    long = table_of(ut_on_imdb(planted), "accuracy-auc").long()
    assert len(long) == 144
    mine = long[long["seeds"] > 0].set_index("objective")
    found = mine.loc[
        "erm", ["model", "dataset", "layers", "gamma_train", "paper", "levels"]
    ].tolist()
    assert found == ["UT", "IMDb", 3, 0.0, 1.707, "0 1 2"]
    assert mine.loc["constrained", "ours"] == pytest.approx(1.55)
    assert mine["is_better"].tolist() == [False, False]
    assert mine["difference"].isna().all()
    assert all("no scores of single examples" in reason for reason in mine["reason"])
