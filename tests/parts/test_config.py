"""Recipes: where they are found, how they inherit and are changed, what is refused, and what the
documentation says of every key.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from cudt.config import describe, errors, plugins, recipe, yaml
from cudt.config.levels import GAMMA, PROBABILITY, parse_levels
from cudt.config.schema import Descent, Dual, Section, TargetLoss, Training
from cudt.utils.errors import UserError


def write(folder: Path, file: str, /, **values: Any) -> str:
    path = folder / f"{file}.yaml"
    path.write_text(yaml.dump(values), encoding="utf-8")
    return str(path)


# ---------------------------------------------------------------- the recipes that come with cudt


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


def test_searches_scales_and_accelerate_files_are_no_recipes():
    folders = {recipe.locate(name).parent.name for name in recipe.names()}
    assert folders == {"text", "video", "instructions", "smoke"}


# ---------------------------------------------------------------- where settings come from


def test_a_name_a_file_and_a_dictionary_are_the_same_recipe(tmp_path):
    values = recipe.read(recipe.locate("reviews-ut"))
    named = recipe.load("reviews-ut")
    for source in (write(tmp_path, "mine", **values), values):
        assert recipe.load(source, name="mine").settings == named.settings
    assert recipe.load(write(tmp_path, "mine", **values)).name == "mine"
    assert recipe.load(values).name == "recipe"


@pytest.mark.parametrize(
    ("before", "after", "merged"),
    [
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}}, {"a": {"x": 1, "y": 3}}),
        ({"a": [1, 2, 3]}, {"a": [4]}, {"a": [4]}),
        ({"a": {"x": 1}}, {"a": None}, {"a": None}),
        ({"alpha": 0.1}, {"alpha": {"target_loss": 0.2}}, {"alpha": {"target_loss": 0.2}}),
        # Another model has other keys.
        ({"m": {"name": "ut", "width": 3}}, {"m": {"name": "vit"}}, {"m": {"name": "vit"}}),
        ({"m": {"name": "u", "w": 3}}, {"m": {"name": "u"}}, {"m": {"name": "u", "w": 3}}),
        # What describes one file is not inherited.
        ({"reproduces": "x", "expect": "y", "name": "z", "needs": "w"}, {}, {"needs": "w"}),
    ],
)
def test_sections_are_merged_with_the_base_and_everything_else_replaces_it(
    before, after, merged, tmp_path
):
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
    texts = ["seed=1", "training.epochs=2", "training.epochs=3"]
    loaded = recipe.load("reviews-ut", texts, seed=5, objective=None)
    assert (loaded.settings.seed, loaded.settings.training.epochs) == (5, 3)
    assert loaded == recipe.load("reviews-ut", {"seed": 5, "training.epochs": 3})


def test_a_change_may_make_a_section_of_a_value_and_set_the_name():
    loaded = recipe.load("reviews-ut", ["descent.alpha.target_loss=0.3", "name=mine"])
    assert loaded.settings.descent.alpha == TargetLoss(target_loss=0.3)
    assert loaded.name == "mine"


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["descent.alpha=[0.1, 0.2, 0]"],
        ["descent.alpha={target_loss: 1e-7}"],
        ["descent.reference=0.7", "descent.resilience=slack", "descent.beta=1e5"],
        ["training.clip_norm=null", "expect='no: 1e5 # true'", "evaluation.gammas=[0, 0.1]"],
    ],
)
def test_the_recipe_in_a_run_folder_is_read_back_unchanged(changes):
    before = recipe.load("reviews-ut", changes)
    after = recipe.parse_resolved(before.text())
    assert after.resolved() == before.resolved()
    assert after.identity() == before.identity()


@pytest.mark.parametrize(
    ("name", "changes", "schedule"),
    [
        ("reviews-ut", (), (1e-3, 0.0)),
        ("imdb-minilm", (), (2e-5, 0.06)),
        ("ucsd-vit", (), (2e-5, 0.06)),
        ("alpaca-smollm", (), (2e-4, 0.06)),
        ("alpaca-smollm", ("model.lora=null",), (2e-5, 0.06)),
        ("imdb-minilm", ("training.warmup_share=0.2",), (2e-5, 0.2)),
        ("imdb-minilm", ("training.learning_rate=2e-5",), (2e-5, 0.0)),
    ],
)
def test_the_learning_rate_fits_the_model_unless_the_recipe_sets_it(name, changes, schedule):
    training = recipe.load(name, ("training.learning_rate=null", *changes)).settings.training
    assert (training.learning_rate, training.warmup_share) == schedule


def test_a_recipe_with_another_model_has_outgrown_its_name():
    def outgrown(*changes: str) -> str:
        return recipe.outgrown_name("alpaca-smollm", recipe.load("alpaca-smollm", changes))

    assert outgrown("training.epochs=2") == ""
    assert outgrown("model.pretrained=models/SmolLM2-135M-Instruct/") == ""
    assert outgrown("model.pretrained=google/gemma") == "model.pretrained = google/gemma"


def test_names_in_any_script_can_be_folders_and_commands_cannot():
    decomposed = unicodedata.normalize("NFD", "Zürich")
    for name in ("Zürich", decomposed, "हिन्दी", "lr=0.1 (copy)", "a.b+c-d_e", "α", "_1", "x" * 100):
        assert recipe.checked_name(name, "name") == name
    refused = ["=1+1", "-rf", ".a", "a/b", "a\nb", "a;b", "", "a ", "a" * 101, "report"]
    for name in refused:
        with pytest.raises(UserError, match=r"^name: "):
            recipe.checked_name(name, "name")


# ---------------------------------------------------------------- what is refused


class Fruit(Section):
    kind: Literal["apple", "pear"]
    weight: Annotated[float, Field(gt=0, le=2)] = 1.0


class Basket(Section):
    owner: str
    first: Fruit | None = None
    by_name: dict[str, Fruit] = Field({})
    heap: list[Fruit] = Field([])


def explained(**values: Any) -> list[str]:
    with pytest.raises(ValidationError) as error:
        Basket.model_validate({"owner": "me", **values})
    return [str(one) for one in errors.explain(Basket, error.value)]


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        ({"first": {"kind": "apple", "wieght": 1}}, {"first.wieght": "weight"}),
        ({"by_name": {"red": {"kind": "aple"}}}, {"by_name.red.kind": "apple"}),
        ({"heap": [{"kind": "pear", "wieght": 1}]}, {"heap.0.wieght": "weight"}),
        # A key that is missing because it is misspelt is one mistake.
        ({"first": {"knid": "apple"}}, {"first.knid": "kind"}),
        ({"first": {"weihgt": 1}}, {"first.kind": "", "first.weihgt": "weight"}),
        ({"by_name": {1: {"kind": "pear"}}, "heap": 3}, {"by_name.1": "", "heap": ""}),
        ({"first": {"kind": "pear", "weight": "3"}}, {"first.weight": ""}),
        ({"owners": 1, "owner": None}, {"owners": "owner", "owner": ""}),
    ],
)
def test_every_mistake_has_its_key_and_the_closest_known_word(values, keys):
    found = {line.partition(": ")[0]: line for line in explained(**values)}
    assert found.keys() == keys.keys()
    for key, meant in keys.items():
        assert (f"did you mean '{meant}'?" in found[key]) == bool(meant)


def test_an_option_is_not_blamed_on_the_file():
    with pytest.raises(UserError, match=r"^imdb-bert\.yaml with your changes: seed: "):
        recipe.load("imdb-bert", seed=9999999999)
    with pytest.raises(UserError, match=r"^recipe: seed: "):
        recipe.load({"base": "imdb-bert", "seed": -1}, ["training.epochs=1"])


@pytest.mark.parametrize(
    ("section", "values"),
    [
        (Descent, {"resilience": "slack"}),
        (Descent, {"beta": 1.0}),
        (Descent, {"decay": "decoupled"}),
        (Descent, {"resilience": "decay", "beta": 0.001, "decay": "decoupled"}),
        (Descent, {"form": "ladder", "gradient": "proxy"}),
        (Dual, {"optimizer": "sgd", "smoothing": 0.5}),
        (Training, {"no_such_key": 1}),
    ],
)
def test_settings_without_effect_are_refused(section, values):
    with pytest.raises(ValidationError):
        section.model_validate(values)


@pytest.mark.parametrize(
    "changes",
    [
        ["descent.warmup_epochs=2", "training.epochs=2"],
        ["checkpoints.keep=best", "training.select=last"],
        ["noise.kind=discrete"],
        ["evaluation.gammas=0:1:0"],
        ["evaluation.probabilities=[2.0]"],
        ["task.name=reviews.no_such_module"],
    ],
)
def test_recipes_that_cannot_be_trained_or_judged_are_refused(changes):
    with pytest.raises(UserError):
        recipe.load("reviews-ut", changes)
    assert recipe.load("reviews-ut", ["descent.warmup_epochs=2"], objective="erm")


# ---------------------------------------------------------------- noise levels


@pytest.mark.parametrize(
    ("given", "levels"),
    [
        ("1,0.5,0,0.5", [0, 0.5, 1]),
        ([1, 0.5, 0], [0, 0.5, 1]),
        ("0:1:0.4", [0, 0.4, 0.8]),
        ("1:1:0.1", [1]),
        ("0:3e-1:1e-1", [0, 0.1, 0.2, 0.3]),
        ("0:2.1:0.15", [round(0.15 * index, 2) for index in range(15)]),
    ],
)
def test_a_grid_is_exact_sorted_and_without_duplicates(given, levels):
    assert parse_levels(given) == levels


@pytest.mark.parametrize(
    "given", ["0:1:0", "1:0:0.1", "a,b", "0:1", "nan", "-1", "0:1e9:0.1", "", "0:inf:1", []]
)
def test_a_bad_grid_is_refused_in_one_line(given):
    with pytest.raises(UserError) as error:
        parse_levels(given)
    assert str(error.value).startswith("γ grid ")
    assert "\n" not in str(error.value)


def test_probabilities_end_at_1():
    assert parse_levels([0.0, 1.5], GAMMA) == [0, 1.5]
    with pytest.raises(UserError, match="≤ 1"):
        parse_levels([0.0, 1.5], PROBABILITY)


# ---------------------------------------------------------------- plug-ins


def test_every_built_in_has_its_code_and_its_section():
    for kind in plugins.BUILT_IN:
        for name in plugins.names(kind):
            assert plugins.implementation(kind, name) is not None
            if kind in ("model", "task"):
                assert {"name"} <= plugins.section(kind, name).model_fields.keys()


def test_what_a_recipe_is_checked_by_is_what_the_code_says():
    for kind, fact in (("noise", "is_added"), ("objective", "is_constrained")):
        for name in plugins.names(kind):
            said = getattr(plugins.implementation(kind, name), fact)
            assert plugins.has(kind, name, fact) == said


def test_a_dotted_name_is_a_module_from_outside(tmp_path, monkeypatch):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "model.py").write_text("def build(): ...\n")
    (tmp_path / "theirs" / "empty.py").write_text("")
    (tmp_path / "theirs" / "broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert plugins.implementation("model", "theirs.model").__name__ == "build"
    for name, message in {
        "theirs.model": "does not define `Config`",
        "theirs.empty": "does not define `build`",
        "theirs.broken": "importing the module failed: ZeroDivisionError",
        "theirs.models": "no Python module 'theirs.models'",
        "../cli": "no Python module '../cli'",
        "unroled": "did you mean 'unrolled'?",
    }.items():
        with pytest.raises(UserError) as error:
            plugins.section("model", name)
        assert message in str(error.value)


# ---------------------------------------------------------------- documentation


def test_every_key_has_a_meaning_and_required_ones_are_what_only_a_user_can_know():
    docs = [*describe.describe_recipe()]
    docs += [
        doc
        for kind in ("task", "model")
        for name in plugins.names(kind)
        for doc in describe.describe_plugin(kind, name)
    ]
    assert [doc.path for doc in docs if len(doc.meaning) < 10] == []
    assert {doc.path for doc in docs if doc.default == describe.REQUIRED} == {
        *("task.name", "task.train", "task.test", "task.text", "task.label"),
        *("model.name", "model.pretrained"),
        *("published.model", "published.dataset", "descent.alpha.target_loss"),
    }


def test_a_key_is_documented_with_its_values_and_default():
    docs = {doc.path: doc for doc in describe.describe_recipe()}
    alpha = "number ≥ 0 and < 1 or list of number ≥ 0 and < 1 or section"
    for path, values, default in (
        ("descent.alpha", alpha, "0.1"),
        ("descent.form", "linear, log, ladder", "linear"),
        ("training.clip_norm", "number > 0 or null", "1.0"),
        ("evaluation.noise_seeds", "list of integer", "[0]"),
    ):
        assert (docs[path].values, docs[path].default) == (values, default)


def test_a_recipe_is_listed_with_its_values():
    listed = {
        doc.path: (value, doc.default)
        for doc, value in describe.resolved_with_docs(recipe.load("reviews-ut", seed=3))
    }
    assert listed["seed"] == (3, "0")
    assert listed["model.layers"] == (4, "5")
    # α is a number here, so its `target_loss` has no value.
    assert "descent.alpha.target_loss" not in listed
