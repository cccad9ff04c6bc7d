from __future__ import annotations

from pathlib import Path

import pytest

from cudt.config import recipe, strict_yaml
from cudt.utils.errors import UserError
from tests.conftest import tiny_recipe


def mistakes(*overrides: str) -> str:
    with pytest.raises(UserError) as error:
        recipe.load("reviews-ut", overrides)
    return str(error.value)


def recipe_file(folder: Path, *without: str, **changes: object) -> Path:
    values = {**recipe.read(recipe.locate("reviews-ut")), **changes}
    path = folder / "mine.yaml"
    path.write_text(
        strict_yaml.dump({key: value for key, value in values.items() if key not in without})
    )
    return path


# ---------------------------------------------------------------- the recipes that come with cudt


def test_the_shipped_recipes_are_valid_and_have_a_description():
    for name in recipe.names():
        settings = recipe.load(name).settings
        assert (
            recipe.locate(name).read_text(encoding="utf-8").splitlines()[0]
            == f"# cudt train --recipe {name}"
        )
        assert settings.reproduces.strip()
        assert settings.needs.strip()
        assert settings.expect.strip()


def test_recipes_are_in_folders_and_sweeps_are_not_recipes():
    folders = {recipe.locate(name).parent.name for name in recipe.names()}
    assert folders == {"text", "video", "instructions", "smoke"}
    assert "alpha" not in recipe.names()


def test_two_files_with_the_same_name_are_an_error(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.yaml").write_text("a: 1\n")
    with pytest.raises(
        UserError, match=r"^two files are called mine\.yaml: .*one/mine\.yaml and .*two/mine\.yaml"
    ):
        recipe.find("mine", tmp_path, "recipe")


def test_recipes_are_found_by_name_and_by_file(tmp_path):
    assert "reviews-ut" in recipe.names()
    named = recipe.load("reviews-ut")
    from_file = recipe.load(str(recipe_file(tmp_path)))
    assert from_file.name == "mine"
    assert from_file.settings.model_dump() == named.settings.model_dump()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("review-ut", "no recipe is called 'review-ut'; did you mean 'reviews-ut'?"),
        ("zzz", "no recipe is called 'zzz'; `cudt recipes` lists all recipes"),
        ("reviews-ut.yaml", "recipe file 'reviews-ut.yaml' does not exist"),
        ("no/such", "recipe file 'no/such' does not exist"),
    ],
)
def test_an_unknown_recipe_is_reported(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        recipe.load(name)
    assert str(error.value) == message


# ---------------------------------------------------------------- errors


ALPHA = "a number ≥ 0 and < 1, a list of numbers ≥ 0 and < 1 or a section with `target_loss`"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.epochs=0", "training.epochs: expected a positive integer, got 0"),
        (
            "training.learning_rate=-1e-3",
            "training.learning_rate: expected a positive number or null, got -0.001",
        ),
        ("model.step_size=1.5", "model.step_size: expected a number > 0 and ≤ 1, got 1.5"),
        ("descent.alpha=1.5", f"descent.alpha: expected {ALPHA}, got 1.5"),
        ("descent.alpha=[0.1, 2]", "descent.alpha.1: expected a number ≥ 0 and < 1, got 2"),
        (
            "descent.alpha={target_loss: -1}",
            "descent.alpha.target_loss: expected a positive number, got -1",
        ),
        ("descent.reference=0", "descent.reference: expected a positive number or 'auto', got 0"),
        ("seed=-1", "seed: expected an integer ≥ 0 and < 4294967296, got -1"),
    ],
)
def test_a_number_out_of_range_is_reported_with_key_range_and_value(override, message):
    assert mistakes(override) == f"reviews-ut.yaml: {message}"


def test_all_mistakes_are_reported_together():
    message = mistakes(
        "training.epoch=1", "model.layers=0", "seed=one", "descent.alpha=2", "noise.kind=pink"
    )
    first, *lines = message.splitlines()
    assert first == "reviews-ut.yaml: 5 errors"
    assert {line.split(":")[0].strip() for line in lines} == {
        "training.epoch",
        "model.layers",
        "seed",
        "descent.alpha",
        "noise.kind",
    }


@pytest.mark.parametrize("override", ["epochs", "=3", "training..epochs=3", ".=1", ""])
def test_a_change_must_be_key_value(override):
    assert mistakes(override).startswith(f"--set '{override}': write key=value")


# ---------------------------------------------------------------- values and identity


def test_later_changes_override_earlier_ones_and_options_override_changes():
    loaded = recipe.load(
        "reviews-ut", ["seed=1", "training.epochs=2", "training.epochs=3"], seed=5, objective=None
    )
    assert loaded.settings.seed == 5
    assert loaded.settings.training.epochs == 3
    assert loaded.settings.objective == "constrained"


@pytest.mark.parametrize(("keep", "select"), [("best", "last"), ("last", "best")])
def test_the_weights_that_a_run_is_evaluated_by_must_be_kept(keep, select):
    with pytest.raises(
        UserError, match=rf"checkpoints: keep: {keep} deletes .*; set keep to {select} or both"
    ):
        tiny_recipe(f"checkpoints.keep={keep}", f"training.select={select}")


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["descent.alpha=[0.1, 0.2, 0]"],
        ["descent.alpha={target_loss: 1e-7}"],
        ["descent.reference=0.7", "descent.resilience=slack", "descent.beta=1e5"],
        ["training.clip_norm=null", "expect='no: 1e5 # true'", "evaluation.gammas=[0, 0.1]"],
    ],
)
def test_the_recipe_of_a_run_is_read_back_unchanged(overrides, tmp_path):
    before = tiny_recipe(*overrides)
    path = tmp_path / "recipe.yaml"
    path.write_text(before.text(), encoding="utf-8")
    after = recipe.load_resolved(path)
    assert after.resolved() == before.resolved()
    assert after.identity() == before.identity()


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_constrained_run_that_is_all_warm_up_is_refused(epochs):
    with pytest.raises(
        UserError,
        match=rf"descent\.warmup_epochs: 2 .* of training\.epochs = {epochs} leave no epoch",
    ):
        recipe.load("reviews-ut", ["descent.warmup_epochs=2", f"training.epochs={epochs}"])


def test_the_recipe_of_a_run_must_have_a_name(tmp_path):
    with pytest.raises(UserError, match="name: missing; this is not the recipe of a run"):
        recipe.load_resolved(recipe_file(tmp_path))


def test_a_plug_in_without_a_config_is_reported_with_its_file(tmp_path, monkeypatch):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "bare.py").write_text("def build(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"model\.name: .*bare\.py does not define `Config`"):
        recipe.load("smoke-text", ["model.name=theirs.bare"])


# ---------------------------------------------------------------- what fits the model


@pytest.mark.parametrize(
    ("name", "overrides", "schedule"),
    [
        ("reviews-ut", (), (1e-3, 0.0)),
        ("imdb-minilm", (), (2e-5, 0.06)),
        ("ucsd-vit", (), (2e-5, 0.06)),
        ("alpaca-smollm", (), (2e-4, 0.06)),
        ("alpaca-smollm", ("model.lora=null",), (2e-5, 0.06)),
        ("imdb-minilm", ("training.warmup_share=0.0",), (2e-5, 0.0)),
        ("imdb-minilm", ("training.warmup_share=0.2",), (2e-5, 0.2)),
        ("imdb-minilm", ("training.learning_rate=2e-5",), (2e-5, 0.0)),
    ],
)
def test_the_learning_rate_fits_the_model_unless_the_recipe_sets_it(name, overrides, schedule):
    loaded = recipe.load(name, ("training.learning_rate=null", *overrides))
    training = loaded.settings.training
    assert (training.learning_rate, training.warmup_share) == schedule
    assert loaded.resolved()["training"]["learning_rate"] == schedule[0]
    again = recipe.parse_resolved(loaded.text())
    assert (again, again.identity()) == (loaded, loaded.identity())


@pytest.mark.parametrize(
    ("overrides", "change"),
    [
        ((), ""),
        (("training.epochs=2",), ""),
        (("model.pretrained=google/gemma-3-270m",), "model.pretrained = google/gemma-3-270m"),
        (("model.pretrained=models/SmolLM2-135M-Instruct/",), ""),
    ],
)
def test_a_recipe_with_another_model_has_outgrown_its_name(overrides, change):
    assert recipe.outgrown_name("alpaca-smollm", recipe.load("alpaca-smollm", overrides)) == change
    named = recipe.load("alpaca-smollm", overrides, "mine")
    assert named.name == "mine"
    assert named.settings == recipe.load("alpaca-smollm", overrides).settings
    assert named.identity() != recipe.load("alpaca-smollm", overrides).identity()


def test_the_folder_of_the_report_is_no_name(tmp_path):
    message = "'report' is a folder that cudt itself writes to; "
    with pytest.raises(UserError, match=f"^--name: {message}choose another name$"):
        recipe.load("reviews-ut", name="report")
    (tmp_path / "report.yaml").write_text("base: reviews-ut\n")
    with pytest.raises(
        UserError, match=f"report.yaml: the name of the file: {message}rename the file"
    ):
        recipe.load(str(tmp_path / "report.yaml"))
    assert recipe.load(str(tmp_path / "report.yaml"), name="mine").name == "mine"
