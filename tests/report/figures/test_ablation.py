from __future__ import annotations

from itertools import pairwise

import matplotlib.colors
import numpy as np
import pytest

from cudt.report.figures import ablation
from tests.report import REACH, make_run
from tests.report.figures import groups_of, legend_of, named_lines, points_of

LEVELS = (0.0, 1.05, 1.65, 2.1)


def ablate(trained_run, tmp_path, key, values, seeds=2):
    for place, value in enumerate(values):
        for seed in range(seeds):
            curve = {level: 1 - 0.1 * level * (place + 1) - 0.02 * seed for level in LEVELS}
            make_run(trained_run, tmp_path, curve, seed=seed, overrides=[f"{key}={value}"])
    return groups_of(tmp_path)


@pytest.mark.parametrize("key", ["descent.alpha", "descent.dual.learning_rate", "training.learning_rate"])
def test_the_metric_stands_against_the_setting_with_bars_over_seeds(key, trained_run, tmp_path, drawn):
    values = [0.001, 0.01, 0.1]
    ((found, groups),) = ablation.ablated(ablate(trained_run, tmp_path, key, values), "gaussian").items()
    assert found == key
    made = ablation.ablation(groups, key, "gaussian", tmp_path / "stem")
    assert [axes.get_title() for axes in drawn[0].axes] == ["γ = 0", "γ = 1.05", "γ = 1.65"]
    for axes, level in zip(drawn[0].axes, LEVELS[:3], strict=True):
        middle, *_, bars = axes.containers[0]
        assert np.allclose(middle.get_xdata(), values)
        assert np.allclose(middle.get_ydata(), [1 - 0.1 * level * (place + 1) - 0.01 for place in range(3)])
        lengths = [abs(high - low) for (_, low), (_, high) in bars[0].get_segments()]
        assert np.allclose(lengths, 2 * 0.01 * 2**0.5)
        assert axes.get_xscale() == "log"
    assert "all else equal, 2 seeds a value" in made.title


def test_a_single_seed_has_its_interval(trained_run, tmp_path, drawn):
    groups = ablate(trained_run, tmp_path, "descent.alpha", [0.0, 0.1, 0.2], seeds=1)
    ablation.ablation(groups, "descent.alpha", "gaussian", tmp_path / "stem")
    bars = drawn[0].axes[0].containers[0][2][0].get_segments()
    assert np.allclose([high - low for (_, low), (_, high) in bars], 2 * REACH)
    assert drawn[0].axes[0].get_xscale() == "linear"


def test_curves_by_value_go_from_light_to_dark(trained_run, tmp_path, drawn):
    groups = ablate(trained_run, tmp_path, "descent.alpha", [0.3, 0.1, 0.2, 0.0])
    ablation.ablation_curves(
        ablation.ablated(groups, "gaussian")["descent.alpha"], "descent.alpha", "gaussian", tmp_path / "stem"
    )
    losses, curves = drawn[0].axes
    assert legend_of(drawn[0]) == ["α = 0", "α = 0.1", "α = 0.2", "α = 0.3"]
    weights = np.array([0.299, 0.587, 0.114])
    greys = [float(weights @ matplotlib.colors.to_rgb(line.get_color())) for line in named_lines(curves).values()]
    assert all(after < before - 0.1 for before, after in pairwise(greys))
    assert points_of(named_lines(curves)["α = 0.3"])[1] == pytest.approx([1.05, 1 - 0.105 - 0.01])
    # The validation losses of a run that was trained.
    assert [len(line.get_xydata()) for line in named_lines(losses).values()] == [3] * 4


def test_two_values_or_two_settings_at_once_are_no_ablation(trained_run, tmp_path):
    for place in range(4):
        settings = [f"descent.alpha={0.1 * place}", f"training.epochs={place + 1}"]
        make_run(trained_run, tmp_path, {0.0: 1.0}, overrides=settings)
    make_run(trained_run, tmp_path, {0.0: 1.0}, overrides=["descent.alpha=0.35", "training.epochs=1"])
    assert ablation.ablated(groups_of(tmp_path), "gaussian") == {}


def test_depth_and_level_of_training_have_figures_of_their_own(trained_run, tmp_path):
    for place in range(1, 5):
        make_run(trained_run, tmp_path, {0.0: 1.0}, overrides=[f"model.layers={place}"])
        make_run(trained_run, tmp_path, {0.0: 1.0}, overrides=[f"noise.gamma_train={place}"], gamma_train=place)
    assert ablation.ablated(groups_of(tmp_path), "gaussian") == {}
