"""Which runs represent each side, and the difference between the sides, from planted runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudt.report.collect import ReadRun, collect
from cudt.report.comparable import SIDES
from cudt.report.compare import Comparison, compare, criterion, failing_layers
from tests.report import make_scored_run, with_info
from tests.report.test_paper_results import (
    evaluated,
    planted,
    seeds,
    unevaluated,
    validated,
    variants,
)

__all__ = ["planted"]

NOISE = "gaussian"


def best_by_validation(runs: Sequence[ReadRun]) -> list[ReadRun]:
    return sorted(runs, key=criterion(runs))


@pytest.fixture
def constrained(planted) -> ReadRun:
    """0.9, 0.8 and 0.6 at 0, 1 and 2; trained at 0.4."""
    return planted["text-constrained"]


@pytest.fixture
def erm(planted) -> ReadRun:
    """1.0, 0.8 and 0.5."""
    return planted["text-erm"]


def at(run: ReadRun, name: str) -> ReadRun:
    """The same run in another folder."""
    return replace(run, run=replace(run.run, path=run.run.path.with_name(name)))


def chosen_runs(made: Comparison, side: str) -> list[ReadRun]:
    return made.sides[side].runs


def chosen(runs: Sequence[ReadRun]) -> list[ReadRun]:
    """The runs of both sides."""
    return [run for side in SIDES for run in compare(runs, NOISE).sides[side].runs]


def hows(made: Comparison) -> list[str]:
    return [made.sides[side].how for side in SIDES]


# ---------------------------------------------------------------- which runs represent a side


def test_runs_that_differ_only_in_their_seed_all_count(constrained, erm):
    made = compare([*seeds(constrained, 0.3, 0.1, 0.2), *seeds(erm, 0.5, 0.6)], NOISE)
    assert hows(made) == ["3 seeds", "2 seeds"]
    # Each seed is better by a tenth than the one before.
    assert made.mean("constrained", "ood_mean") == pytest.approx(0.8)
    assert made.values("erm", "ood_mean") == pytest.approx([0.65, 0.75])
    assert made.is_even


@pytest.mark.parametrize("searched", SIDES)
def test_with_several_variants_on_one_side_both_are_the_best_of_all_their_runs(
    searched, constrained, erm
):
    runs = {"constrained": constrained, "erm": erm}
    other = next(side for side in SIDES if side != searched)
    tried = variants(runs[searched], 0.3, 0.1, 0.2)
    repeated = seeds(runs[other], 0.6, 0.5)
    made = compare([*tried, *repeated], NOISE)
    assert chosen_runs(made, searched) == [tried[1]]
    assert chosen_runs(made, other) == [repeated[1]]
    assert [made.sides[side].best_of for side in (searched, other)] == [3, 2]


def test_if_the_best_is_not_evaluated_the_side_is_empty_and_names_the_command(constrained, erm):
    worse, best = variants(constrained, 0.2, 0.1)
    made = compare([worse, at(unevaluated(best), "the-best"), erm], NOISE)
    assert chosen_runs(made, "constrained") == []
    assert chosen_runs(made, "erm") == [erm]
    problem = f"the best by validation data is not evaluated: cudt eval-ood {best.run.path.with_name('the-best')}"
    assert made.sides["constrained"].problem == problem
    assert made.difference("ood_mean").reason == problem
    assert made.difference("ood_mean").better == ""
    assert math.isnan(made.mean("constrained", "mean"))
    # One side alone is still shown at its own levels.
    assert made.levels == [0.0, 1.0, 2.0]


# ---------------------------------------------------------------- the criterion


def test_runs_scored_at_the_same_validation_levels_are_ranked_by_their_mean_metric(constrained):
    first, second = variants(constrained, 0.1, 0.9)
    judged = [validated(first, 0.9, 0.5), validated(second, 0.8, 0.7)]
    assert best_by_validation(judged)[0].info.variant == "1"
    # Of an error, less is better.
    errors = [
        with_info(one, metric={"name": "RMSE", "higher_is_better": False, "of_mean": "root"})
        for one in judged
    ]
    assert best_by_validation(errors)[0].info.variant == "0"


def test_a_level_of_validation_that_is_not_a_number_is_never_the_best(constrained):
    first, second = variants(constrained, 0.5, 0.5)
    judged = [validated(first, 0.9, math.nan), validated(second, 0.1, 0.1)]
    assert [run.info.variant for run in best_by_validation(judged)] == ["1", "0"]


def test_both_sides_are_chosen_by_one_criterion(constrained, erm):
    # By loss the first of each; by the metric the second.
    ours, theirs = (variants(run, 0.1, 0.9) for run in (constrained, erm))
    judged = [
        [validated(first, 0.5, 0.5), validated(second, 0.9, 0.9)]
        for first, second in (ours, theirs)
    ]
    assert [run.info.variant for run in chosen([*judged[0], *judged[1]])] == ["1", "1"]
    assert [run.info.variant for run in chosen([*judged[0], *theirs])] == ["0", "0"]


# ---------------------------------------------------------------- levels


def test_both_sides_are_read_at_the_levels_that_all_their_runs_have(constrained, erm):
    made = compare([constrained, evaluated(erm, {0.0: 1.0, 0.2: 0.0, 1.0: 0.7, 1.5: 0.0})], NOISE)
    assert made.levels == [0.0, 1.0]
    assert made.mean("constrained", "mean") == pytest.approx(0.85)
    assert made.mean("erm", "mean") == pytest.approx(0.85)
    assert made.mean("constrained", "auc") == pytest.approx(0.85)
    assert (made.mean("constrained", "ood_mean"), made.mean("erm", "ood_mean")) == (0.8, 0.7)
    assert made.difference("ood_mean").difference == pytest.approx(0.1)


@pytest.mark.parametrize("broken", SIDES)
def test_what_is_not_a_number_at_one_level_is_none_at_all_and_never_better(
    broken, trained_run, tmp_path
):
    random = np.random.default_rng(0)
    for side in SIDES:
        scores = {
            gamma: random.random(60) + (5.0 if side == broken else 0.0) for gamma in (0.0, 1.0, 2.0)
        }
        if side == broken:
            scores[2.0] = np.full(60, math.nan)
        make_scored_run(trained_run, tmp_path, scores, objective=side)
    made = compare(collect([tmp_path]).runs, NOISE)
    for quantity in ("mean", "auc", "ood_mean"):
        assert math.isnan(made.mean(broken, quantity))
        between = made.difference(quantity)
        assert math.isnan(between.difference)
        assert (between.unit, between.better, between.reason) == (
            "",
            "",
            "the metric is not a number",
        )
    # A quantity without that level keeps its number.
    assert made.difference("id_mean").better == broken


# ---------------------------------------------------------------- which side is better


def scored_runs(trained_run: Any, out: Path, *, alphas: Sequence[float]) -> list[ReadRun]:
    """Constrained runs that are better by far, one for each α, and one ERM run."""
    noise = np.random.default_rng(0).random(60)
    for alpha in alphas:
        scores = dict.fromkeys((0.0, 1.0), noise + 1)
        make_scored_run(trained_run, out, scores, overrides=[f"descent.alpha={alpha}"])
    make_scored_run(trained_run, out, dict.fromkeys((0.0, 1.0), noise), objective="erm")
    return collect([out]).runs


@pytest.mark.parametrize(("alphas", "is_even"), [([0.1], True), ([0.1, 0.2], False)])
def test_the_best_of_more_is_not_better_though_the_interval_leaves_out_0(
    alphas, is_even, trained_run, tmp_path
):
    made = compare(scored_runs(trained_run, tmp_path, alphas=alphas), NOISE)
    between = made.difference("ood_mean")
    assert between.difference == pytest.approx(1)
    assert between.low > 0
    assert (between.unit, between.n) == ("examples", 60)
    assert (made.is_even, between.better) == (is_even, "constrained" if is_even else "")


# ---------------------------------------------------------------- infeasible runs


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        (["met", "met", "met"], ""),
        (["met", "violated", "met"], "violated at layer 2"),
        (["violated", "relaxed", "violated"], "violated at layers 1, 3; relaxed at layer 2"),
        (["relaxed", "relaxed", "met"], "relaxed at layers 1–2"),
    ],
)
def test_the_layers_that_fail_are_named_except_for_erm(verdicts, words, constrained, erm):
    listed = [{"layer": layer, "verdict": verdict} for layer, verdict in enumerate(verdicts, 1)]
    ours, theirs = (
        with_info(run, verdicts=listed, feasible=not words) for run in (constrained, erm)
    )
    assert failing_layers(ours) == words
    assert failing_layers(theirs) == ""
    made = compare([ours, theirs], NOISE)
    assert made.sides["constrained"].infeasible_text == (f"seed 0: {words}" if words else "")
    assert made.sides["erm"].infeasible == []
