"""The identity of a run: the same settings are the same run folder, in every version."""

from __future__ import annotations

import pytest

from cudt.config import recipe
from tests.config.test_recipe import recipe_file
from tests.conftest import tiny_recipe

#: Constrained, erm and supervised: the names of run folders, which must not change.
IDENTITIES = {
    "alpaca-llama": "e76af80a c640527d ac769bde",
    "alpaca-smollm": "251546f8 36ae3f28 4d31bc60",
    "avenue-dust": "b4653d13 eccf5eb3 1c4194e1",
    "avenue-dust-9": "3b693d09 2bcdaa39 77b9a55e",
    "avenue-ut": "643ed57b 9b799081 4f3d05b1",
    "avenue-vit": "83dc2b09 bc6b1663 1ef9cbc2",
    "imdb-bert": "ba66ce92 e9149d0c 5f213658",
    "imdb-distilbert": "c77875c2 853da547 2a412514",
    "imdb-gte-small": "de826aaf 562c872d 18827b55",
    "imdb-gte-small-mean": "24db0e1c b8c016cb dfcf5c0f",
    "imdb-minilm": "3c8c3bae fe3fcba4 b875faec",
    "imdb-roberta": "b3e5dad2 ac8db318 a0f7cc2a",
    "imdb-ut": "dbdcba08 eaa6b6e7 3b7c6d54",
    "mnli-distilbert": "8c963d19 298b043f 2538d2c2",
    "mnli-gte-small": "2e28731f a899d68c 8c18b93a",
    "mnli-gte-small-mean": "536560b8 0523e1b6 c7949383",
    "mnli-roberta": "a2c801a0 66d31f7f c19d8f32",
    "mnli-ut": "4db4dfac bc1461ff a8dc4b28",
    "reviews-ut": "3484de48 93a92602 0da9d9e6",
    "shanghaitech-dust": "a1a4386b ba99e229 ed70b33a",
    "shanghaitech-ut": "290c3ae0 957c521d 59dd4b18",
    "shanghaitech-vit": "26cf605c 5e84d2a7 08870372",
    "shapes-dust": "74633b39 a507c2fd 19709197",
    "smoke-llama": "8f4c46e0 44e37073 6c26621a",
    "smoke-text": "847bd3b5 6b622800 ab09a21e",
    "smoke-video": "56cd4b4f ccf56e9b b2545b04",
    "ucsd-dinov2": "9917c0ce 956e1443 7c4bcd7d",
    "ucsd-dust": "2099dfbe 66141c09 cc53c4a1",
    "ucsd-dust-cpu": "c054c880 1eee21e3 8547eaca",
    "ucsd-ut": "e461c6b6 3a44128c 6c5128ab",
    "ucsd-ut-cpu": "9b43ac8e 35537921 3a268aed",
    "ucsd-vit": "2620a2ce b32b3975 2a6297f0",
}


def test_every_recipe_has_a_recorded_identity():
    assert recipe.names() == sorted(IDENTITIES)


@pytest.mark.parametrize("name", IDENTITIES)
def test_the_runs_of_a_shipped_recipe_keep_their_identities(name):
    objectives = ("constrained", "erm", "supervised")
    assert [recipe.load(name, objective=one).identity() for one in objectives] == IDENTITIES[name].split()


@pytest.mark.parametrize(
    "override",
    [
        "task.train=95",
        "task.data_seed=1",
        "model.layers=4",
        "model.tie_layers=true",
        "descent.alpha=0.2",
        "descent.reference=1",
        "descent.form=log",
        "descent.dual.learning_rate=1",
        "training.epochs=3",
        "training.batch_size=16",
        "training.accumulation=2",
        "training.optimizer=adamw",
        "training.learning_rate=1",
        "training.schedule=cosine",
        "training.readout_learning_rate=1",
        "training.tf32=true",
        "training.compile=true",
        "training.weight_decay=0.1",
        "training.clip_norm=null",
        "training.precision=bf16",
        "training.log_every=3",
        "training.checkpoint_every=2",
        "noise.kind=uniform",
        "noise.gamma_train=0.3",
    ],
)
def test_settings_that_change_training_change_the_identity(override):
    assert tiny_recipe(override).identity() != tiny_recipe().identity()


@pytest.mark.parametrize(
    "override",
    [
        *("evaluation.gammas=0,9", "evaluation.noise_seeds=[1, 2]", "checkpoints.keep=best", "loading.workers=2"),
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
    assert tiny_recipe("model.tie_layers=false", "descent.alpha=1e-1").identity() == tiny_recipe().identity()


def test_seeds_of_one_recipe_share_an_identity_without_seed():
    variants = {tiny_recipe(seed=seed).identity(without_seed=True) for seed in range(3)}
    assert len(variants) == 1
    assert variants != {tiny_recipe(objective="erm").identity(without_seed=True)}
    assert variants != {tiny_recipe().identity()}


def test_a_recipe_without_a_learning_rate_is_the_same_run_as_with_the_one_it_had_before():
    default, explicit = (recipe.load("reviews-ut", [f"training.learning_rate={rate}"]) for rate in ("null", "1e-3"))
    assert default.identity() == explicit.identity()
    assert recipe.load("reviews-ut", ["training.warmup_share=0.1"]).identity() != recipe.load("reviews-ut").identity()
