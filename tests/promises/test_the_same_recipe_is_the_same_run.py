"""A run's identity: the settings that change the numbers of its training, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from cudt.config import recipe


def identity(*changes: str, **settings: Any) -> str:
    return recipe.load("reviews-ut", changes, **settings).identity()


SHAPING = """
    task.train=95 task.data_seed=1 model.layers=3 model.tie_layers=true descent.alpha=0.2
    descent.reference=1 descent.form=log descent.dual.learning_rate=1 training.epochs=3
    training.batch_size=16 training.accumulation=2 training.optimizer=adamw training.schedule=cosine
    training.learning_rate=1 training.readout_learning_rate=1 training.tf32=true
    training.compile=true training.weight_decay=0.1 training.clip_norm=null training.precision=bf16
    training.validate_every=7 noise.kind=uniform noise.gamma_train=0.3 objective=erm seed=1
"""


def test_every_setting_that_changes_the_numbers_changes_the_identity():
    changed = [identity(change) for change in SHAPING.split()]
    assert len({identity(), identity(name="other"), *changed}) == 2 + len(changed)


@pytest.mark.parametrize(
    "change",
    [
        "training.log_every=1",
        "training.checkpoint_every=5",
        "evaluation.gammas=0,9",
        "checkpoints.keep=best",
        "loading.workers=2",
        "expect=other",
        # Defaults in other words.
        "model.tie_layers=false",
        "descent.alpha=1e-1",
    ],
)
def test_other_settings_do_not_change_the_identity(change):
    assert identity(change) == identity()


def test_a_learning_rate_that_fits_the_model_is_the_one_that_is_written_down():
    assert identity("training.learning_rate=null") == identity("training.learning_rate=1e-3")


def test_seeds_of_one_recipe_share_an_identity_without_seed():
    def shared(**settings: Any) -> str:
        return recipe.load("reviews-ut", **settings).identity(without_seed=True)

    assert len({shared(seed=seed) for seed in range(3)}) == 1
    assert shared() not in (shared(objective="erm"), identity())
