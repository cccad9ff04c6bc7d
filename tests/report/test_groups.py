from __future__ import annotations

from cudt.config.differences import flat_settings
from cudt.config.recipe import NOT_IDENTITY
from tests.conftest import tiny_recipe


def test_what_says_nothing_about_training_is_no_setting():
    recipe = tiny_recipe()
    assert {"published", "reproduces"} <= NOT_IDENTITY <= {*recipe.resolved()}
    settings = flat_settings(recipe)
    left_out = {*NOT_IDENTITY, "seed", "objective"}
    assert [key for key in settings if key.split(".")[0] in left_out or key in left_out] == []
    assert "descent.alpha" in settings
