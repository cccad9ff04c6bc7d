"""The identity of a run: the same settings are the same run folder."""

from __future__ import annotations

import pytest

from cudt.config import recipe
from tests.config.test_recipe import recipe_file
from tests.conftest import tiny_recipe

SHAPING = """
    task.train=95 task.data_seed=1 model.layers=4 model.tie_layers=true descent.alpha=0.2 descent.reference=1
    descent.form=log descent.dual.learning_rate=1 training.epochs=3 training.batch_size=16 training.accumulation=2
    training.optimizer=adamw training.learning_rate=1 training.schedule=cosine training.readout_learning_rate=1
    training.tf32=true training.compile=true training.weight_decay=0.1 training.clip_norm=null training.precision=bf16
    noise.kind=uniform noise.gamma_train=0.3
"""


def test_settings_that_change_training_change_the_identity():
    changed = [tiny_recipe(override).identity() for override in SHAPING.split()]
    assert len({tiny_recipe().identity(), *changed}) == 1 + len(changed)


@pytest.mark.parametrize(
    "override",
    [
        *(
            "evaluation.gammas=0,9",
            "evaluation.noise_seeds=[1, 2]",
            "checkpoints.keep=best",
            "loading.workers=2",
        ),
        *("reproduces=other", "needs=other", "expect=other"),
    ],
)
def test_other_settings_do_not_change_the_identity(override):
    assert tiny_recipe(override).identity() == tiny_recipe().identity()


def test_seed_objective_and_name_change_the_identity(tmp_path):
    loaded = recipe.load("reviews-ut")
    others = [
        recipe.load("reviews-ut", seed=1),
        recipe.load("reviews-ut", objective="erm"),
        recipe.load("reviews-ut", objective="supervised"),
        recipe.load(str(recipe_file(tmp_path))),
    ]
    assert len({other.identity() for other in [loaded, *others]}) == 5


def test_an_explicit_default_does_not_change_the_identity():
    assert (
        tiny_recipe("model.tie_layers=false", "descent.alpha=1e-1").identity()
        == tiny_recipe().identity()
    )


def test_seeds_of_one_recipe_share_an_identity_without_seed():
    variants = {tiny_recipe(seed=seed).identity(without_seed=True) for seed in range(3)}
    assert len(variants) == 1
    assert variants != {tiny_recipe(objective="erm").identity(without_seed=True)}
    assert variants != {tiny_recipe().identity()}


def test_a_recipe_without_a_learning_rate_is_the_same_run_as_with_the_one_it_had_before():
    default, explicit = (
        recipe.load("reviews-ut", [f"training.learning_rate={rate}"]) for rate in ("null", "1e-3")
    )
    assert default.identity() == explicit.identity()
    assert (
        recipe.load("reviews-ut", ["training.warmup_share=0.1"]).identity()
        != recipe.load("reviews-ut").identity()
    )
