from __future__ import annotations

import numpy as np
import pytest

from cudt.report.figures import ablation, choose
from tests.report.figures import ABLATION_LEVELS, make_ablation


@pytest.mark.parametrize(
    "key", ["descent.alpha", "descent.dual.learning_rate", "training.learning_rate"]
)
def test_the_metric_is_drawn_against_the_setting_with_bars_over_seeds(key, trained_run, tmp_path):
    values = [0.001, 0.01, 0.1]
    ((found, groups),) = choose.ablated(
        make_ablation(trained_run, tmp_path, key, values), "gaussian"
    ).items()
    assert found == key
    figure, title = ablation.draw(groups, key, "gaussian")
    assert [axes.get_title() for axes in figure.axes] == ["γ = 0", "γ = 1.05", "γ = 1.65"]
    for axes, level in zip(figure.axes, ABLATION_LEVELS[:3], strict=True):
        middle, *_, bars = axes.containers[0]
        assert np.allclose(middle.get_xdata(), values)
        assert np.allclose(
            middle.get_ydata(), [1 - 0.1 * level * (index + 1) - 0.01 for index in range(3)]
        )
        lengths = [abs(high - low) for (_, low), (_, high) in bars[0].get_segments()]
        assert np.allclose(lengths, 2 * 0.01 * 2**0.5)
        assert axes.get_xscale() == "log"
    assert "all else equal, 2 seeds per value" in title
