from __future__ import annotations

from cudt.evaluation.grid import Grid
from tests.conftest import tiny_recipe

SETTINGS = tiny_recipe("evaluation.noise_seeds=[3, 1, 3]").settings.evaluation


def test_what_is_not_given_comes_from_the_recipe():
    grid = Grid()
    assert grid.kinds(SETTINGS) == ["gaussian"]
    assert grid.seeds(SETTINGS) == [3, 1]
    assert grid.levels("gaussian", SETTINGS) == [0.0, 0.5, 1.0]
    assert grid.levels("discrete", SETTINGS)[:2] == [0.0, 0.03]


def test_each_kind_of_noise_has_levels_on_its_own_scale():
    grid = Grid([2.0], [0.5], ["uniform", "discrete"], [7])
    assert grid.kinds(SETTINGS) == ["uniform", "discrete"]
    assert grid.seeds(SETTINGS) == [7]
    assert grid.levels("uniform", SETTINGS) == [2.0]
    assert grid.levels("discrete", SETTINGS) == [0.5]
