"""Differences between runs and their intervals, against literal twins and formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cudt.evaluation.intervals import student_quantile
from cudt.evaluation.tables import area_under_curve
from cudt.report import compare, frames, paired
from cudt.report.paired import Scores
from tests.planted import GAMMA_TRAIN, make_scored_run

Array = np.ndarray[Any, Any]
LEVELS = (0.0, GAMMA_TRAIN, 1.0)


def drawn(
    seed: int, n: int = 40, noise_seeds: int = 1, levels: tuple[float, ...] = LEVELS
) -> dict[float, Array]:
    rng = np.random.default_rng(seed)
    return {gamma: rng.uniform(0.2, 0.9 - gamma / 4, (n, noise_seeds)) for gamma in levels}


def compared(folder) -> pd.DataFrame:
    found = frames.read([folder])
    compare.assign(found)
    differences = paired.Differences(found)
    table = differences.table()
    assert list(table.columns) == paired.COLUMNS
    return table


def by_quantity(table: pd.DataFrame) -> pd.DataFrame:
    names = table["quantity"].where(table["gamma"].isna(), table["gamma"].astype(str))
    return table.set_index(names)


def slow_twin(
    ours: dict[float, Array], erm: dict[float, Array], weights: Array, *, root: bool
) -> dict[str, Any]:
    """The paired bootstrap, literally: one example at a time."""

    def metric(scores: Array, rows: list[int]) -> float:
        total = sum(weights[row] for row in rows)
        means = sum(weights[row] * scores[row] for row in rows) / total
        return float(np.mean([math.sqrt(mean) if root else mean for mean in means]))

    def quantities(rows: list[int]) -> dict[str, float]:
        difference = {g: metric(ours[g], rows) - metric(erm[g], rows) for g in ours}
        inside = [value for gamma, value in difference.items() if gamma <= GAMMA_TRAIN]
        outside = [value for gamma, value in difference.items() if gamma > GAMMA_TRAIN]
        return {
            **{str(gamma): value for gamma, value in difference.items()},
            "auc": area_under_curve([*difference], [*difference.values()]),
            "mean": sum(difference.values()) / len(difference),
            "id_mean": sum(inside) / len(inside),
            "ood_mean": sum(outside) / len(outside),
        }

    rng, n = np.random.default_rng(0), len(weights)
    resamples = pd.DataFrame([quantities(rng.integers(n, size=n).tolist()) for _ in range(2000)])
    whole = quantities(list(range(n)))
    return {name: (whole[name], *np.quantile(resamples[name], [0.025, 0.975])) for name in whole}


@pytest.mark.parametrize(("root", "noise_seeds"), [(False, 1), (False, 2), (True, 1)])
def test_over_examples_it_is_a_literal_twins_bootstrap(root, noise_seeds, trained_run, tmp_path):
    n = 24
    ours, erm = (drawn(seed, n, noise_seeds) for seed in (1, 2))
    weights = np.random.default_rng(3).integers(1, 9, n).astype(float)
    # In the order of ids, in which examples are numbered.
    ids = [f"{number:02}" for number in range(n)]
    for objective, scores in (("constrained", ours), ("erm", erm)):
        make_scored_run(
            trained_run, tmp_path, scores, weights=weights, ids=ids, root=root, objective=objective
        )
    table = by_quantity(compared(tmp_path))
    wanted = slow_twin(ours, erm, weights, root=root)
    assert set(table.index) == set(wanted)
    for name, numbers in wanted.items():
        assert table.loc[name, ["difference", "low", "high"]].tolist() == pytest.approx(
            numbers, abs=1e-12
        )
    assert set(table["unit"]) == {"examples"}
    assert set(table["n"]) == {n}


CLIPS = [f"test/{name}" for name in ("a/0", "a/8", "b/0", "b/8", "b/16", "c/0", "d/0", "d/8")]


def by_hand_over_clips(ours: Array, erm: Array) -> tuple[float, float]:
    """The difference in RMSE, and the half-width of its interval over whole clips."""
    rows_of = [[n for n, name in enumerate(CLIPS) if f"/{clip}/" in name] for clip in "abcd"]

    def difference(clips: Any) -> float:
        rows = [row for clip in clips for row in rows_of[clip]]
        return float(np.sqrt(ours[rows].mean()) - np.sqrt(erm[rows].mean()))

    rng = np.random.default_rng(0)
    drawn = [difference(rng.integers(4, size=4)) for _ in range(2000)]
    # Student's t with three degrees of freedom.
    return difference(range(4)), 3.182446 * math.sqrt(4 / 3 * np.var(drawn, ddof=1))


def test_windows_of_a_clip_are_drawn_together(trained_run, tmp_path):
    ours, erm = (drawn(seed, len(CLIPS)) for seed in (1, 2))
    facts: Any = {"ids": CLIPS, "root": True, "windows_of_clips": True}
    make_scored_run(trained_run, tmp_path, ours, **facts)
    make_scored_run(trained_run, tmp_path, erm, objective="erm", **facts)
    table = by_quantity(compared(tmp_path))
    assert set(table["unit"]) == {"clips"}
    assert set(table["n"]) == {4}
    for gamma in LEVELS:
        whole, reach = by_hand_over_clips(ours[gamma], erm[gamma])
        row = table.loc[str(gamma), ["difference", "low", "high"]].tolist()
        assert row == pytest.approx([whole, whole - reach, whole + reach], abs=1e-6)


def test_the_order_of_examples_changes_no_number(trained_run, tmp_path):
    made = []
    for folder, order in (("a", np.arange(40)), ("b", np.random.default_rng(5).permutation(40))):
        for objective, seed in (("constrained", 1), ("erm", 2)):
            scores = {g: values[order] for g, values in drawn(seed).items()}
            ids = [f"test-{row}" for row in order]
            out = tmp_path / folder
            make_scored_run(trained_run, out, scores, ids=ids, objective=objective)
        made.append(compared(tmp_path / folder))
    pd.testing.assert_frame_equal(made[0], made[1])


def make_seeds(
    trained_run, folder, objective: str, shifts: dict[int, float], spread: float = 0.0
) -> None:
    """Runs whose every score is a seed's own shift above those of the same examples."""
    for seed, shift in shifts.items():
        noise = np.random.default_rng(seed).normal(0, spread, (40, 1))
        scores = {g: values + shift + noise for g, values in drawn(1).items()}
        make_scored_run(trained_run, folder, scores, objective=objective, seed=seed)


def test_over_paired_seeds_it_is_students_interval_of_their_differences(trained_run, tmp_path):
    make_seeds(trained_run, tmp_path, "constrained", {0: 0.5, 1: 0.3, 2: 0.1, 7: 0.9})
    make_seeds(trained_run, tmp_path, "erm", {0: 0.4, 1: 0.1, 2: 0.1, 8: 0.0})
    row = by_quantity(compared(tmp_path)).loc["mean"]
    # Differences 0.1, 0.2 and 0: mean 0.1, s = 0.1; all examples alike, so they add nothing. t = 4.3027 for ν = 2.
    reach = 4.302653 * 0.1 / math.sqrt(3)
    assert [row["difference"], row["low"], row["high"]] == pytest.approx(
        [0.1, 0.1 - reach, 0.1 + reach], abs=1e-5
    )
    assert (row["unit"], row["n"], row["better"]) == ("seeds paired", 3, "")


def test_over_other_seeds_it_is_welchs_interval(trained_run, tmp_path):
    make_seeds(trained_run, tmp_path, "constrained", {0: 0.5, 1: 0.3, 2: 0.4})
    make_seeds(trained_run, tmp_path, "erm", {2: 0.1, 3: 0.2, 4: 0.0, 5: 0.1})
    row = by_quantity(compared(tmp_path)).loc["mean"]
    a, b = 0.01 / 3, (0.02 / 3) / 4
    freedom = (a + b) ** 2 / (a**2 / 2 + b**2 / 3)
    assert freedom == pytest.approx(27 / 7)
    reach = student_quantile(freedom) * math.sqrt(a + b)
    assert [row["difference"], row["low"], row["high"]] == pytest.approx(
        [0.3, 0.3 - reach, 0.3 + reach], abs=1e-5
    )
    assert (row["unit"], row["n"], row["better"]) == ("seeds", 7, "constrained")


def coverage(n: int, seed_spread: float, gain_spread: float, trials: int = 200) -> float:
    """How often the interval over n paired seeds holds the true difference 0."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(trials):
        base, gain = rng.normal(0.5, 0.3, 100), rng.normal(0, gain_spread, 100)
        sides: list[list[Scores]] = [[], []]
        for side, sign in zip(sides, (0.5, -0.5), strict=True):
            for _ in range(n):
                own = rng.normal(0, seed_spread / math.sqrt(2)) + rng.normal(0, 0.07, 100)
                scores = (base + sign * gain + own).reshape(-1, 1)
                ids = pd.Index([f"{number:03}" for number in range(100)])
                side.append(Scores(ids, [0.0], scores, np.ones_like(scores), False))
        wanted = paired.Quantities.over([0.0], "gaussian", 0.0)
        made = paired._interval("seeds paired", sides[0], sides[1], wanted)
        hits += made[1][0] <= 0 <= made[2][0]
    return hits / trials


@pytest.mark.parametrize(("seed_spread", "gain_spread"), [(0.05, 0.1), (0.03, 0.3), (0.003, 0.3)])
def test_about_95_of_100_intervals_over_three_seeds_hold_the_truth(seed_spread, gain_spread):
    # Two standard deviations of a share of 200 are 0.03; it may be too wide, never too narrow.
    assert coverage(3, seed_spread, gain_spread) >= 0.92


def assert_refused(table: pd.DataFrame, reason: str, difference: float) -> None:
    assert table[["low", "high"]].isna().all(axis=None)
    assert set(table["better"]) == {""}
    assert all(reason in found for found in table["reason"])
    assert by_quantity(table)["difference"]["mean"] == pytest.approx(difference)


def test_only_levels_and_examples_that_both_have_are_compared(trained_run, tmp_path):
    names = [f"{number:02}" for number in range(40)]
    ours, erm = drawn(1), drawn(2)
    make_scored_run(trained_run, tmp_path, ours, ids=names)
    part = {g: erm[g][10:] for g in (0.0, 1.0)}
    make_scored_run(trained_run, tmp_path, part, ids=names[10:], objective="erm")
    table = by_quantity(compared(tmp_path))
    assert list(table.index) == ["0.0", "1.0", "auc", "mean", "id_mean", "ood_mean"]
    assert set(table["n"]) == {30}
    assert table["difference"]["0.0"] == pytest.approx((ours[0.0][10:] - erm[0.0][10:]).mean())


def test_a_pair_without_a_common_level_is_a_row_with_the_reason(trained_run, tmp_path):
    make_scored_run(trained_run, tmp_path, drawn(1, levels=(0.0, 1.0)))
    make_scored_run(trained_run, tmp_path, drawn(2, levels=(0.5, 2.0)), objective="erm")
    (row,) = compared(tmp_path).to_dict("records")
    assert row["reason"] == "no level in common"
    assert math.isnan(row["difference"])


def test_runs_under_other_noise_seeds_have_no_interval(trained_run, tmp_path):
    for number, objective in enumerate(("constrained", "erm"), 1):
        scores = {g: np.full((40, number), number / 4) for g in LEVELS}
        make_scored_run(trained_run, tmp_path, scores, objective=objective)
    assert_refused(compared(tmp_path), "noise seeds differ: [0] and [0, 1]", -0.25)


def test_scores_that_are_not_those_behind_the_curve_are_refused(trained_run, tmp_path):
    for objective in ("constrained", "erm"):
        flat = {g: np.full(40, 0.5) for g in LEVELS}
        run = make_scored_run(trained_run, tmp_path, flat, objective=objective)
    rows = run.read_examples()
    run.write_examples(rows.assign(score_3=rows["score_3"] + 0.01))
    assert_refused(compared(tmp_path), "does not give the metric in ood.csv", 0.0)
