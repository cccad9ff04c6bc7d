from __future__ import annotations

import pytest

from benchmarks import interval_coverage, readout_memory


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_a_constrained_update_takes_hardly_more_memory_than_one_of_erm(tuning):
    erm, constrained, naive = (readout_memory.peak(way, tuning) for way in readout_memory.WAYS)
    assert constrained <= 1.15 * erm
    assert naive > 3 * constrained


def test_intervals_over_few_seeds_hold_the_truth_where_a_bootstrap_over_seeds_does_not():
    shares = interval_coverage.coverage(3, "both", 150)
    assert shares["here"] >= 0.92
    assert shares["bootstrap over seeds"] < 0.8


def test_intervals_over_few_clips_hold_the_truth_where_a_bootstrap_over_windows_does_not():
    shares = interval_coverage.clip_coverage(4, 60)
    assert shares["here"] >= 0.85
    assert shares["bootstrap over windows"] < 0.6
