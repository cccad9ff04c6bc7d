"""Recipes: where they are found, how they inherit, what is refused, and the YAML they are written in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cudt.config import describe, plugins, recipe, yaml
from cudt.config.differences import names_apart
from cudt.config.levels import GAMMA, PROBABILITY, parse_levels
from cudt.config.schema import Recipe, TargetLoss
from cudt.utils.errors import UserError


def write(folder: Path, file: str, /, **values: Any) -> str:
    path = folder / f"{file}.yaml"
    path.write_text(yaml.dump(values), encoding="utf-8")
    return str(path)


def test_the_shipped_recipes_are_valid_and_say_what_they_are():
    files = [
        path
        for kind in ("text", "video", "instructions", "smoke")
        for path in recipe.folder().glob(f"{kind}/*.yaml")
    ]
    assert recipe.names() == sorted(path.stem for path in files)
    for name in recipe.names():
        settings = recipe.load(name).settings
        first = recipe.locate(name).read_text(encoding="utf-8").splitlines()[0]
        assert first == f"# cudt train --recipe {name}"
        assert all((settings.reproduces, settings.needs, settings.expect)), name


@pytest.mark.parametrize(
    ("before", "after", "merged"),
    [
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}}, {"a": {"x": 1, "y": 3}}),
        ({"a": [1, 2, 3]}, {"a": [4]}, {"a": [4]}),
        ({"a": {"x": 1}}, {"a": None}, {"a": None}),
        # Another model has other keys.
        ({"m": {"name": "ut", "width": 3}}, {"m": {"name": "vit"}}, {"m": {"name": "vit"}}),
        ({"m": {"name": "u", "w": 3}}, {"m": {"name": "u"}}, {"m": {"name": "u", "w": 3}}),
        # What describes one file is not inherited.
        ({"reproduces": "x", "expect": "y", "name": "z", "needs": "w"}, {}, {"needs": "w"}),
    ],
)
def test_sections_merge_with_the_base_and_all_else_replaces_it(before, after, merged, tmp_path):
    write(tmp_path, "base", **before)
    path = write(tmp_path, "mine", base="base.yaml", **after)
    assert recipe.read(Path(path)) == merged


def test_a_base_is_a_shipped_name_or_a_path_from_the_file(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    write(tmp_path, "first", base="reviews-ut", seed=1, training={"epochs": 3})
    second = write(tmp_path / "inner", "second", base="../first.yaml", training={"batch_size": 8})
    monkeypatch.chdir("/")
    settings = recipe.load(second, seed=5).settings
    assert (settings.seed, settings.training.epochs, settings.training.batch_size) == (5, 3, 8)
    assert settings.model == recipe.load("reviews-ut").settings.model


def test_changes_are_texts_or_values_and_later_ones_win():
    texts = ["seed=1", "training.epochs=2", "training.epochs=3", "descent.alpha.target_loss=0.3"]
    loaded = recipe.load("reviews-ut", [*texts, "name=mine"], seed=5, objective=None)
    assert (loaded.name, loaded.settings.seed, loaded.settings.training.epochs) == ("mine", 5, 3)
    assert loaded.settings.descent.alpha == TargetLoss(target_loss=0.3)
    values = {"seed": 5, "training.epochs": 3, "descent.alpha": {"target_loss": 0.3}}
    assert loaded == recipe.load("reviews-ut", values, name="mine")


@pytest.mark.parametrize(
    "changes",
    [
        ["descent.alpha=[0.1, 0.2, 0]"],
        ["descent.alpha={target_loss: 1e-7}"],
        ["descent.reference=0.7", "descent.resilience=slack", "descent.beta=1e5"],
        ["training.clip_norm=null", "expect='no: 1e5 # true'", "evaluation.gammas=[0, 0.1]"],
    ],
)
def test_the_recipe_in_a_run_folder_is_read_back_unchanged(changes, tmp_path):
    before = recipe.load("reviews-ut", changes)
    (tmp_path / "recipe.yaml").write_text(before.text(), encoding="utf-8")
    after = recipe.load(tmp_path / "recipe.yaml")
    assert after == before
    assert after.identity() == before.identity()


@pytest.mark.parametrize(
    ("name", "changes", "schedule"),
    [
        ("reviews-ut", (), (1e-3, 0.0)),
        ("imdb-minilm", (), (2e-5, 0.06)),
        ("alpaca-smollm", (), (2e-4, 0.06)),
        ("imdb-minilm", ("training.warmup_share=0.2",), (2e-5, 0.2)),
        ("imdb-minilm", ("training.learning_rate=2e-5",), (2e-5, 0.0)),
    ],
)
def test_the_learning_rate_fits_the_model_unless_the_recipe_sets_it(name, changes, schedule):
    training = recipe.load(name, ("training.learning_rate=null", *changes)).settings.training
    assert (training.learning_rate, training.warmup_share) == schedule


def test_names_in_any_script_can_be_folders_and_commands_cannot():
    for name in ("Zürich", "Zu\u0308rich", "हिन्दी", "lr=0.1 (copy)", "a.b+c-d_e", "_1", "x" * 100):
        assert recipe.checked_name(name, "name") == name
    for name in ("=1+1", "-rf", ".a", "a/b", "a\nb", "a;b", "", "a ", "a" * 101, "report"):
        with pytest.raises(UserError, match=r"^name: "):
            recipe.checked_name(name, "name")


def test_variants_are_told_apart_by_all_digits_of_a_number():
    variants = [{"training.epochs": 1234567}, {"training.epochs": 1234568}]
    assert names_apart(variants) == ["epochs=1234567", "epochs=1234568"]


def test_a_grid_is_exact_sorted_and_without_duplicates():
    for given, levels in (
        ("1,0.5,0,0.5", [0, 0.5, 1]),
        ([1, 0.5, 0], [0, 0.5, 1]),
        ("0:1:0.4", [0, 0.4, 0.8]),
        ("1:1:0.1", [1]),
        ("0:3e-1:1e-1", [0, 0.1, 0.2, 0.3]),
    ):
        assert parse_levels(given) == levels


def test_a_bad_grid_is_refused_in_one_line():
    for given in ("0:1:0", "1:0:0.1", "a,b", "nan", "-1", "0:1e9:0.1", ""):
        with pytest.raises(UserError, match=r"^γ grid [^\n]*$"):
            parse_levels(given)
    assert parse_levels([0.0, 1.5], GAMMA) == [0, 1.5]
    with pytest.raises(UserError, match="from 0 to 1,"):
        parse_levels([0.0, 1.5], PROBABILITY)


def test_what_a_recipe_is_checked_by_is_what_the_code_says():
    for kind, fact in (("noise", "is_added"), ("objective", "is_constrained")):
        for name in plugins.names(kind):
            said = getattr(plugins.implementation(kind, name), fact)
            assert plugins.has(kind, name, fact) == said


def test_a_dotted_name_is_a_module_from_outside(tmp_path, monkeypatch):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "objective.py").write_text("OBJECTIVE = 'theirs'\n")
    (tmp_path / "theirs" / "model.py").write_text("def build(): ...\n")
    (tmp_path / "theirs" / "empty.py").write_text("")
    (tmp_path / "theirs" / "broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert plugins.implementation("objective", "theirs.objective") == "theirs"
    for name, message in {
        "theirs.model": "does not define `Config`",
        "theirs.empty": "does not define `build`",
        "theirs.broken": "importing the module failed: ZeroDivisionError",
        "theirs.models": "importing the module failed: ModuleNotFoundError",
        "../cli": "importing the module failed",
        "unroled": "did you mean 'unrolled'?",
    }.items():
        with pytest.raises(UserError) as error:
            plugins.section("model", name)
        assert message in str(error.value)


def test_every_key_has_a_meaning_and_required_ones_are_what_only_a_user_can_know():
    docs = describe.describe(Recipe)
    for kind in ("task", "model"):
        for name in plugins.names(kind):
            docs += describe.describe(plugins.section(kind, name), kind)
    assert [doc.path for doc in docs if len(doc.meaning) < 10] == []
    assert {doc.path for doc in docs if doc.default == describe.REQUIRED} == {
        *("task.name", "task.train", "task.test", "task.text", "task.label"),
        *("model.name", "model.pretrained"),
        *("published.model", "published.dataset", "descent.alpha.target_loss"),
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-5", 2e-5),
        ("010", 10),
        ("no", "no"),
        ("True", True),
        ("", None),
        ("0:2.1:0.15", "0:2.1:0.15"),
        ("1_000", "1_000"),
        ("2024-01-31", "2024-01-31"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    parsed = yaml.parse(text, "x.yaml")
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: *nowhere", "2: anchors and aliases are not allowed"),
        ("1: a\n'1': b\n", "2: duplicate key '1'"),
        ("a: 1\n? [b, c]\n: 2\n", "2: "),
        ("a: 1\n---\nb: 2\n", "2: "),
    ],
    ids=ascii,
)
def test_what_is_refused_is_named_with_file_and_line(text, message):
    with pytest.raises(UserError) as error:
        yaml.parse(text, "x.yaml")
    assert str(error.value).startswith(f"x.yaml:{message}")
    assert "\n" not in str(error.value)


def test_endless_values_are_refused_with_one_line():
    for value in ("[" * 3000 + "]" * 3000, "9" * 10_000):
        with pytest.raises(UserError, match=r"^x\.yaml: [^\n]+$"):
            yaml.parse(f"a: {value}", "x.yaml")


def test_a_file_must_consist_of_keys_and_be_unicode(tmp_path):
    for text in ("- a\n- b\n", "", "just a word"):
        with pytest.raises(UserError, match=r"^x\.yaml: must consist of `key: value` lines"):
            yaml.parse_mapping(text, "x.yaml")
    file = tmp_path / "x.yaml"
    file.write_bytes("a: ü\n".encode("utf-8-sig"))
    assert yaml.read(file) == {"a": "ü"}


def test_dumped_values_are_parsed_back():
    texts = ["1e5", "010", "no", "true", "Null", "~", "", "1:30", ".inf", " x ", "a\nb", "a: b # c"]
    numbers: list[object] = [1e-07, 1e22, 5e-324, 0.1 + 0.2, float("inf"), -3, True, None, [], {}]
    repeated = ["γ ≤ 2.1 " * 20]
    for value in (*texts, *numbers, {"a": {"b": [texts, numbers]}, "c": repeated, "d": repeated}):
        for written in (yaml.dump(value), yaml.dump_line(value)):
            assert repr(yaml.parse(written, "dumped")) == repr(value)
