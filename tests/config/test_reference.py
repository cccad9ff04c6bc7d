from __future__ import annotations

import subprocess
import sys

import pytest

from cudt.config import plugins, recipe, reference
from cudt.config.reference import REQUIRED, KeyDoc

PLUGINS = [(kind, name) for kind in ("task", "model") for name in plugins.names(kind)]


def by_path(docs: list[KeyDoc]) -> dict[str, KeyDoc]:
    return {doc.path: doc for doc in docs}


@pytest.mark.parametrize(
    ("path", "kind", "default", "allowed"),
    [
        ("descent.form", "one of 'linear', 'log', 'ladder'", "linear", ""),
        ("descent.dual.smoothing", "number or null", "null", "≥ 0 and < 1"),
        ("descent.slack_restart", "true or false", "true", ""),
        ("training.epochs", "integer", "10", "≥ 1"),
        ("evaluation.noise_seeds", "list of integers", "[0]", "that is not empty"),
        ("evaluation.gammas", "text or list of numbers", "0:2.1:0.15", ""),
        ("descent.alpha.target_loss", "number", REQUIRED, "> 0"),
        ("task.name", "text", REQUIRED, ""),
    ],
)
def test_a_key_is_described_with_type_default_and_range(path, kind, default, allowed):
    doc = by_path(reference.describe_recipe())[path]
    assert (doc.type, doc.default, doc.range) == (kind, default, allowed)


def test_every_key_of_a_recipe_has_a_meaning():
    assert [doc.path for doc in reference.describe_recipe() if len(doc.meaning) < 10] == []


@pytest.mark.parametrize(("kind", "name"), PLUGINS)
def test_every_key_of_every_task_and_model_has_a_meaning(kind, name):
    docs = reference.describe_plugin(kind, name)
    assert docs[0].path == f"{kind}.name"
    assert [doc.path for doc in docs if len(doc.meaning) < 10] == []


def test_describing_the_recipe_does_not_import_torch():
    code = (
        "import sys; from cudt.config import reference; reference.describe_recipe(); "
        "print([name for name in ('torch', 'pandas', 'transformers') if name in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
        == "[]\n"
    )


def test_a_recipe_is_listed_with_values_and_which_of_them_are_defaults():
    settings = {
        one.doc.path: one for one in reference.resolved_with_docs(recipe.load("reviews-ut", seed=3))
    }
    assert (settings["seed"].value, settings["seed"].is_default) == (3, False)
    assert (settings["model.layers"].value, settings["model.layers"].is_default) == (4, False)
    assert (settings["descent.form"].value, settings["descent.form"].is_default) == ("linear", True)
    assert (settings["task.name"].value, settings["task.name"].is_default) == ("reviews", False)
    # α is a number here, so its `target_loss` has no value.
    assert "descent.alpha.target_loss" not in settings
