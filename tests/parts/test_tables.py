"""Rows of ood.csv and layers.csv and their intervals, against literal twins and printed values."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from cudt.evaluation import tables
from cudt.evaluation.intervals import (
    Array,
    bootstrap,
    bootstrap_of_clips,
    resampled_means,
    student,
    student_quantile,
    wilson,
)
from cudt.method import constraints
from cudt.models.layer_losses import Measurement
from tests.planted import keys

KEYS = keys("gaussian", 0.5)


def examples(n: int = 30, layers: int = 3, n_clips: int = 0) -> pd.DataFrame:
    """Random examples; of some clips if they are named."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {"id": [f"{number:02}" for number in range(n)]}
    columns["group"] = [
        f"clip-{number % n_clips}" if n_clips else f"{number:02}" for number in range(n)
    ]
    columns |= {"weight": rng.integers(1, 5, n).astype("float32"), "input": math.nan}
    for layer in range(1, layers + 1):
        columns[f"loss_{layer}"] = rng.random(n).astype("float32")
        columns[f"score_{layer}"] = (rng.random(n) * 9).astype("float32")
    return pd.DataFrame(columns)


def task(**flags: Any) -> Any:
    """A task's metric: the root of the mean score."""
    given = {"scores_are_shares": False, "windows_of_clips": False, "metric": math.sqrt}
    return SimpleNamespace(**{**given, **flags})


def info(**changes: Any) -> Any:
    given = {"reference": 0.7, "rates": [0.1, 0.1, 0.1], "form": "linear", "verdicts": []}
    return SimpleNamespace(**{**given, **changes})


def mean(table: pd.DataFrame, column: str) -> float:
    weights = [float(one) for one in table["weight"]]
    values = [float(one) for one in table[column]]
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)


def test_the_metric_of_a_level_is_that_of_the_weighted_mean_with_its_bootstrap():
    table = examples()
    row = tables.ood_row(task(), KEYS, table)
    assert row["value"] == pytest.approx(math.sqrt(mean(table, "score_3")))
    ends = bootstrap(table["score_3"].to_numpy(float), table["weight"].to_numpy(float))
    assert [row["low"], row["high"]] == pytest.approx([math.sqrt(end) for end in ends])
    assert math.isnan(row["input"])
    assert {name: row[name] for name in KEYS} == KEYS
    assert row["n"] == 30


def test_shares_have_wilsons_interval_and_windows_that_of_their_clips():
    table = examples().assign(score_3=[1.0, 0.0, 1.0] * 10, weight=1.0, input=4.0)
    row = tables.ood_row(task(scores_are_shares=True, metric=float), KEYS, table)
    assert [row["low"], row["high"]] == pytest.approx(wilson(2 / 3, 30))
    assert row["input"] == 4
    clips = examples(n_clips=4)
    row = tables.ood_row(task(windows_of_clips=True), KEYS, clips)
    numbers = np.array([number % 4 for number in range(30)])
    ends = bootstrap_of_clips(
        clips["score_3"].to_numpy(float), clips["weight"].to_numpy(float), numbers
    )
    assert ends is not None
    assert [row["low"], row["high"]] == pytest.approx([math.sqrt(end) for end in ends])
    one = tables.ood_row(task(windows_of_clips=True), KEYS, examples(n_clips=1))
    assert math.isnan(one["low"])


@pytest.mark.parametrize("n_clips", [0, 6])
def test_layers_have_weighted_means_and_the_standard_error_of_their_constraint(n_clips):
    table = examples(n_clips=n_clips)
    rows = tables.layer_rows(task(), info(), KEYS, table)
    assert [row["layer"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert row["loss"] == pytest.approx(mean(table, f"loss_{row['layer']}"))
        assert row["metric"] == pytest.approx(math.sqrt(mean(table, f"score_{row['layer']}")))
    # A clip is one observation: its weighted mean loss, with the weight of all its windows.
    losses, weights = [], []
    for _, mine in table.groupby("group"):
        losses.append([mean(mine, f"loss_{layer}") for layer in (1, 2, 3)])
        weights.append(float(mine["weight"].astype(float).sum()))
    judged = constraints.judge(
        torch.tensor(losses, dtype=torch.double).T,
        torch.tensor(weights, dtype=torch.double),
        *(0.7, [0.1] * 3, torch.zeros(3)),
    )
    assert [row["standard_error"] for row in rows] == pytest.approx(
        [one.standard_error for one in judged]
    )


def test_verdicts_follow_from_the_rows_of_a_level():
    losses = {"layer": [1, 2, 3], "loss": [0.6, 0.55, 0.53], "standard_error": 0.01}
    rows, slack = pd.DataFrame(losses), {1: 0.0, 2: 0.0, 3: 0.1}
    given = [SimpleNamespace(layer=one, slack=slack[one], allowed=1.0) for one in slack]
    found = tables.verdicts(info(verdicts=given), rows)
    # Allowed: 0.63, 0.54 and 0.495.
    assert [one.allowed for one in found] == pytest.approx([0.63, 0.54, 0.495])
    assert [one.verdict for one in found] == ["met", "borderline", "relaxed"]
    unknown = tables.verdicts(info(verdicts=given), rows, has_slack=False)
    assert [one.verdict for one in unknown] == ["met", "borderline", "violated"]


def test_noise_seeds_are_averaged_and_an_error_as_the_root_of_the_mean_square():
    measured = {"layer": 1, "loss": [1, 2], "metric": [3.0, 4.0], "standard_error": 0.1}
    rows = pd.DataFrame({**KEYS, **measured, "seed": [0, 1]})
    (root,) = tables.over_seeds(rows, is_root=True).itertuples()
    assert (root.loss, root.metric) == pytest.approx((1.5, math.sqrt(12.5)))
    (mean_of,) = tables.over_seeds(rows, is_root=False).itertuples()
    assert mean_of.metric == 3.5
    nan = rows.assign(loss=[math.nan, 1.0])
    assert tables.over_seeds(nan, is_root=False)["loss"].isna().all()


def test_ratios_of_layers_are_counted_one_by_one():
    halves: Array = np.repeat([0.0, 1.0], 100)
    table = examples(200).assign(loss_1=halves, loss_2=halves / 2)
    found = tables.ratio_bins(table)
    ratios = []
    for _, row in table.iterrows():
        for before, after in (("loss_1", "loss_2"), ("loss_2", "loss_3")):
            a, b = float(row[before]), float(row[after])
            ratios.append(1.0 if a == b == 0 else math.inf if a == 0 else b / a)
    for left, right, share in found[["left", "right", "share"]].to_numpy():
        inside = sum(left <= ratio < right for ratio in ratios)
        inside += sum(ratio == math.inf for ratio in ratios) * math.isinf(right)
        assert share == pytest.approx(inside / len(ratios))
    assert found["cumulative"].iloc[-1] == pytest.approx(1)
    assert tables.ratio_bins(examples(layers=1)).empty


def test_areas_and_psnr_are_those_computed_by_hand():
    assert tables.area_under_curve([0, 0.5, 2], [1, 0.8, 0.2]) == pytest.approx(0.45 + 0.75)
    assert math.isnan(tables.area_under_curve([0], [1]))
    assert tables.psnr(25.5) == pytest.approx(20)
    assert tables.psnr(np.array([0.0]))[0] == math.inf


def test_means_are_weighted_and_grouping_by_example_keeps_them():
    losses, scores = torch.rand(2, 3, 8, dtype=torch.double, generator=torch.Generator())
    weights = torch.arange(1.0, 9.0).double()
    parts = [
        Measurement(losses[:, own], scores[:, own], weights[own], list(ids))
        for own, ids in ((slice(4), "bacd"), (slice(4, 8), "dcab"))
    ]
    joined = Measurement.joined(parts)
    by_hand = (losses * weights).sum(1) / 36
    assert joined.layer_losses.tolist() == pytest.approx(by_hand.tolist())
    grouped = joined.grouped(joined.ids)
    assert grouped.ids == ["a", "b", "c", "d"]
    assert grouped.layer_losses.tolist() == pytest.approx(by_hand.tolist())
    assert grouped.layer_scores.tolist() == pytest.approx(joined.layer_scores.tolist())
    # b is the first of the first part and the last of the second, with weights 1 and 8.
    wanted = (losses[:, 0] + 8 * losses[:, 7]) / 9
    assert grouped.losses[:, 1].tolist() == pytest.approx(wanted.tolist())


def test_wilson_has_the_values_that_newcombe_prints():
    # Newcombe, "Two-sided confidence intervals for the single proportion" (1998), Table I, method 3.
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15 / 148, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0, 0.1611), abs=5e-5)
    assert wilson(1 / 29, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


def test_about_95_of_100_intervals_hold_the_true_mean():
    # Of a normal law, whose mean is 0; the binomial(100, 0.95) lies within these bounds in 99 cases
    # of 100.
    samples = np.random.default_rng(0).normal(size=(100, 60))
    ends = [bootstrap(one, np.ones(60)) for one in samples]
    assert 88 <= sum(low <= 0 <= high for low, high in ends) <= 99


def test_students_quantiles_are_those_of_the_tables():
    printed = {1: 12.706205, 2: 4.302653, 3: 3.182446, 10: 2.228139, 10**6: 1.959966}
    for freedom, quantile in printed.items():
        assert student_quantile(freedom) == pytest.approx(quantile, abs=5e-5)


def test_variances_that_add_up_have_satterthwaites_degrees_of_freedom():
    # Equal variances of 3 and 3 degrees of freedom are one of 6; next to a large one a small one does not count.
    reach = student([(np.array([2.0, 1e-12, 0.0]), 3), (np.array([2.0, 1.0, 0.0]), 3)])
    assert reach == pytest.approx([2 * 2.446912, 3.182446, 0], abs=1e-4)


@pytest.mark.parametrize("clips", [None, np.array([0, 2, 1, 0, 2, 2, 1, 0])])
def test_clips_or_rows_are_drawn_for_all_columns_together(clips):
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=(8, 2)), rng.integers(1, 5, (8, 2)).astype(float)
    found = resampled_means(values, weights, clips)
    assert found.shape == (2000, 2)
    draws, groups = np.random.default_rng(0), np.arange(8) if clips is None else clips
    for row in found:
        drawn = draws.integers(groups.max() + 1, size=groups.max() + 1)
        rows = np.concatenate([np.flatnonzero(groups == one) for one in drawn])
        wanted = (values[rows] * weights[rows]).sum(0) / weights[rows].sum(0)
        assert row == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("n_clips", [2, 4, 12])
def test_about_95_of_100_intervals_over_few_clips_hold_the_true_mean(n_clips):
    rng, hits = np.random.default_rng(1), []
    for _ in range(100):
        # Clips of 5 to 20 windows differ more than the windows of one.
        clips: Array = np.repeat(np.arange(n_clips), rng.integers(5, 20, n_clips))
        values = 1 + rng.normal(0, 0.2, n_clips)[clips] + rng.normal(0, 0.1, len(clips))
        ends = bootstrap_of_clips(values, np.ones(len(values)), clips)
        hits.append(ends is not None and ends[0] <= 1 <= ends[1])
    # The binomial(100, 0.95) lies within these bounds in 99 cases of 100.
    assert 88 <= sum(hits) <= 99
