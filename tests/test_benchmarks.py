from __future__ import annotations

import pytest

from benchmarks import readout_memory


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_a_constrained_update_takes_hardly_more_memory_than_one_of_erm(tuning):
    erm, constrained, naive = (readout_memory.peak(way, tuning) for way in readout_memory.WAYS)
    assert constrained <= 1.15 * erm
    assert naive > 3 * constrained
