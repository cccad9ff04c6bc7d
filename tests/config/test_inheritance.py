from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cudt.config import inheritance, recipe, strict_yaml
from cudt.utils.errors import UserError


def write(folder: Path, name: str, /, **values: Any) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(strict_yaml.dump(values), encoding="utf-8")
    return str(path)


def refused(path: str, *overrides: str) -> str:
    with pytest.raises(UserError) as error:
        recipe.load(path, overrides)
    return str(error.value)


# ---------------------------------------------------------------- what is inherited


def test_a_recipe_inherits_from_a_shipped_one_by_name(tmp_path):
    mine = recipe.load(write(tmp_path, "mine", base="reviews-ut", training={"epochs": 3}))
    base = recipe.load("reviews-ut")
    assert mine.name == "mine"
    assert mine.settings.training == base.settings.training.model_copy(update={"epochs": 3})
    assert mine.settings.descent == base.settings.descent
    assert mine.settings.model == base.settings.model


def test_a_file_that_only_inherits_is_the_same_recipe_under_its_own_name(tmp_path):
    path = write(tmp_path, "mine", base="reviews-ut", name="reviews-ut")
    assert recipe.load(path).identity() == recipe.load("reviews-ut").identity()
    assert "base" not in recipe.load(path).resolved()


def test_a_base_can_be_a_file_relative_to_the_one_that_names_it(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    write(tmp_path, "first", base="reviews-ut", seed=1, training={"epochs": 3})
    write(tmp_path / "inner", "second", base="../first.yaml", training={"batch_size": 8})
    third = write(tmp_path / "inner", "third", base="second.yaml", seed=5)
    monkeypatch.chdir("/")
    settings = recipe.load(third).settings
    assert (settings.seed, settings.training.epochs, settings.training.batch_size) == (5, 3, 8)
    assert (
        settings.training.learning_rate == recipe.load("reviews-ut").settings.training.learning_rate
    )


@pytest.mark.parametrize(
    ("before", "after", "merged"),
    [
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}}, {"a": {"x": 1, "y": 3}}),
        ({"a": [1, 2, 3]}, {"a": [4]}, {"a": [4]}),
        ({"a": {"x": 1}}, {"a": None}, {"a": None}),
        ({"alpha": 0.1}, {"alpha": {"target_loss": 0.2}}, {"alpha": {"target_loss": 0.2}}),
        (
            {"alpha": {"target_loss": 0.2}},
            {"alpha": {"target_loss": 0.3}},
            {"alpha": {"target_loss": 0.3}},
        ),
        # Another model has other keys.
        ({"m": {"name": "ut", "width": 3}}, {"m": {"name": "vit"}}, {"m": {"name": "vit"}}),
        (
            {"m": {"name": "ut", "width": 3}},
            {"m": {"name": "ut", "k": 1}},
            {"m": {"name": "ut", "width": 3, "k": 1}},
        ),
        # Not inherited: it describes one file.
        (
            {"reproduces": "x", "expect": "y", "published": {}, "name": "z", "needs": "w"},
            {},
            {"needs": "w"},
        ),
    ],
)
def test_sections_are_merged_key_by_key_and_everything_else_is_replaced(
    before, after, merged, tmp_path
):
    write(tmp_path, "base", **before)
    path = write(tmp_path, "mine", base="base.yaml", **after)
    assert inheritance.read(Path(path), recipe.locate) == merged


# ---------------------------------------------------------------- errors


def test_errors_in_inherited_keys_are_reported_together(tmp_path):
    write(tmp_path, "first", base="reviews-ut", training={"epochs": 0, "epoch": 1})
    write(tmp_path, "second", base="first.yaml", seed=-1)
    mine = write(tmp_path, "mine", base="second.yaml", noise={"gamma_train": -1})
    assert refused(mine).splitlines() == [
        "mine.yaml: 4 errors",
        "  training.epochs: expected a positive integer, got 0",
        "  training.epoch: unknown key; did you mean 'epochs'?",
        "  noise.gamma_train: expected a number ≥ 0, got -1",
        "  seed: expected an integer ≥ 0 and < 4294967296, got -1",
    ]


def test_a_cycle_is_refused_with_the_chain(tmp_path):
    write(tmp_path, "a", base="b.yaml")
    write(tmp_path, "b", base="c.yaml")
    path = write(tmp_path, "c", base="a.yaml")
    assert refused(path).endswith(
        "b.yaml: base: files inherit from each other in a circle: c.yaml → a.yaml → b.yaml → c.yaml"
    )
    own = write(tmp_path, "own", base="own.yaml")
    assert refused(own).endswith("circle: own.yaml → own.yaml")


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("review-ut", "base: no recipe is called 'review-ut'; did you mean 'reviews-ut'?"),
        ("no.yaml", "no.yaml' does not exist"),
        (3, "base: expected the name of a file to inherit from, got 3"),
    ],
)
def test_a_base_that_does_not_exist_is_refused(base, message, tmp_path):
    path = write(tmp_path, "mine", base=base)
    assert refused(path).startswith(f"{path}: base: ")
    assert message in refused(path)
