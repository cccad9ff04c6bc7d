from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudt.report import paired
from cudt.report.collect import collect
from cudt.report.gains import GainSetting, compared, gains
from cudt.report.published import PAPER_TABLES, paper_gains
from tests.report import make_run, make_scored_run


def scores(*shares: float) -> dict[float, np.ndarray]:
    """Scores of 40 examples with these accuracies at γ = 0, 1 and 2."""
    return {float(level): (np.arange(40) < 40 * share).astype(float) for level, share in enumerate(shares)}


def test_a_gain_is_the_difference_in_paired_csv(trained_run, tmp_path):
    for seed in range(3):
        make_scored_run(trained_run, tmp_path, scores(0.9, 0.8, 0.7 - 0.05 * seed), seed=seed)
        make_scored_run(trained_run, tmp_path, scores(0.9, 0.7, 0.6), seed=seed, objective="erm")
    runs = collect([tmp_path]).runs
    ((setting, (pair,)),) = compared(runs).items()
    assert setting == GainSetting("reviews", 0.4, "accuracy", "gaussian")
    (gain,) = gains(pair, ["ood_mean"])
    table = paired.compare(runs)[0]
    row = table[(table["quantity"] == "ood_mean") & (table["objective"] == "constrained")].iloc[0]
    assert (gain.value, gain.low, gain.high) == pytest.approx((row["difference"], row["low"], row["high"]))
    assert gain.value == pytest.approx((0.1 + 0.05) / 2)
    assert (gain.seeds, gain.levels) == (3, (0.0, 1.0, 2.0))


def test_a_lower_error_is_a_gain(trained_run, tmp_path):
    for seed in range(3):
        for objective, error in (("constrained", 4.0), ("erm", 9.0)):
            made = {0.0: np.full(40, 1.0), 1.0: np.full(40, error)}
            make_scored_run(trained_run, tmp_path, made, root=True, seed=seed, objective=objective)
    (pairs,) = compared(collect([tmp_path]).runs).values()
    (gain,) = gains(pairs[0], ["ood_mean"])
    assert gain.value == pytest.approx(1.0)
    assert gain.low <= gain.value <= gain.high


def test_two_seeds_are_too_few_and_no_variant_is_selected(trained_run, tmp_path):
    for seed in range(3):
        make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.5}, seed=seed, objective="erm")
        for form in ("linear", "ladder"):
            make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.6}, seed=seed, overrides=[f"descent.form={form}"])
    for seed in range(2):
        make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.9}, seed=seed, objective="supervised")
    (pairs,) = compared(collect([tmp_path]).runs).values()
    assert sorted(pair.ours[0].settings["descent.form"] for pair in pairs) == ["ladder", "linear"]


def test_erm_with_the_same_settings_is_the_baseline(trained_run, tmp_path):
    for seed in range(3):
        make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.6}, seed=seed)
        for rate, loss in ((1e-3, 0.1), (5e-2, 0.9)):
            changes: dict[str, Any] = {
                "overrides": [f"training.learning_rate={rate}"],
                "best": {"validation_loss": loss},
            }
            make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.5}, seed=seed, objective="erm", **changes)
        make_run(trained_run, tmp_path, {0.0: 0.9, 1.0: 0.5}, seed=seed, objective="erm", best={"validation_loss": 0.5})
    runs = collect([tmp_path]).runs
    (found,) = compared(runs).values()
    assert [pair.baseline[0].validation_loss for pair in found] == [0.5]
    # Without it, the best on validation data.
    (found,) = compared([run for run in runs if run.validation_loss != 0.5 or run.objective != "erm"]).values()
    assert [pair.baseline[0].validation_loss for pair in found] == [0.1]


def test_the_papers_gains_are_means_over_gamma_train():
    auc = PAPER_TABLES[1]
    found = {(one.model, one.layers): one for one in paper_gains(auc, "imdb")}
    # DistilBERT has 6 layers; the paper prints 12.
    assert list(found) == [("UT", 3), ("UT", 5), ("UT", 7), ("UT", 9), ("DistilBERT", 6), ("RoBERTa", 24)]
    large = found["RoBERTa", 24]
    assert (large.mean, large.low, large.high) == pytest.approx((0.101, 0.050, 0.146), abs=5e-4)
    small = found["DistilBERT", 6]
    assert (small.mean, small.low, small.high) == pytest.approx((0.021, -0.025, 0.051), abs=5e-4)
    assert paper_gains(auc, "reviews") == []
    # Less is better: the paper's constrained DUST has the lower error.
    assert all(one.high > 0 for one in paper_gains(PAPER_TABLES[0], "Avenue") if one.model == "DUST")
