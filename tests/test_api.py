"""The public Python API: `import cudt`."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
import typing
from pathlib import Path

import pytest
import torch
import yaml

import cudt
from cudt.config import recipe as recipes
from cudt.method.descent import LayerwiseDescent
from cudt.utils.errors import DataWarning
from tests.conftest import TINY

CHANGES = {key: yaml.safe_load(value) for key, value in (item.split("=") for item in TINY)}
HEAVY = ("torch", "pandas", "pydantic", "transformers", "matplotlib", "rich")


def modules_after(code: str) -> set[str]:
    """The heavy packages that a fresh interpreter has imported after running some code."""
    script = f"{code}\nimport sys\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_importing_cudt_imports_nothing_heavy():
    assert modules_after("import cudt; dir(cudt); cudt.train; cudt.UserError") == set()


def test_every_public_name_exists_and_is_listed_and_documented():
    assert set(cudt.__all__) <= set(dir(cudt))
    for name in cudt.__all__:
        assert inspect.getdoc(getattr(cudt, name)), name
        assert inspect.isfunction(getattr(cudt, name)) or inspect.isclass(getattr(cudt, name))
    assert len(cudt.__all__) <= 12
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        cudt.tarin  # noqa: B018


def test_editors_and_first_use_see_the_same_names():
    """What is imported for type checkers is what `__getattr__` gives."""
    source = Path(cudt.__file__).read_text(encoding="utf-8")
    checked = dict(
        re.findall(
            r"^    from (cudt\.\S+) import (\w+)$", source.split("__version__")[0], re.MULTILINE
        )
    )
    lazy = {module: name for name, module in cudt._LAZY.items()}
    assert lazy.items() <= checked.items()


# ---------------------------------------------------------------- recipes


def test_a_recipe_comes_from_a_name_a_file_or_a_dictionary(tmp_path):
    shipped = recipes.load("reviews-ut", TINY, objective="erm", seed=3)
    settings = recipes.read(recipes.locate("reviews-ut"))
    file = tmp_path / "reviews-ut.yaml"
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    for source in ("reviews-ut", file, str(file), {"name": "reviews-ut", **settings}):
        loaded = cudt.load_recipe(source, CHANGES, objective="erm", seed=3)
        assert loaded.resolved() == shipped.resolved()
        assert loaded.identity() == shipped.identity()
    assert cudt.load_recipe(settings).name == "recipe"


def test_a_dictionary_inherits_like_a_file_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(
        "base: reviews-ut\ntraining: {epochs: 2}\nseed: 5\n", encoding="utf-8"
    )
    for base in ("mine.yaml", "./mine.yaml"):
        settings = {"base": base, "name": "mine", "task": {"train": 80}}
        loaded = cudt.load_recipe(settings, {"training.batch_size": 8})
        overrides = ("task.train=80", "training.batch_size=8")
        assert loaded.identity() == recipes.load("mine.yaml", overrides).identity()
        assert settings == {"base": base, "name": "mine", "task": {"train": 80}}
    shipped = recipes.load("reviews-ut").identity()
    assert cudt.load_recipe({"base": "reviews-ut", "name": "reviews-ut"}).identity() == shipped


def test_a_dictionary_is_not_changed():
    settings = recipes.read(recipes.locate("reviews-ut"))
    before = yaml.safe_dump(settings)
    cudt.load_recipe(settings, {"training.epochs": 77, "task.train": 5})
    assert yaml.safe_dump(settings) == before


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        (
            {"training.epochs": "three", "training.batch_sise": 1},
            ["training.epochs", "three", "batch_sise"],
        ),
        ({"seed.first": 1}, ["with your changes: seed: "]),
    ],
)
def test_wrong_changes_are_reported_together_as_a_user_error(changes, messages):
    settings = {"seed": 0, **recipes.read(recipes.locate("reviews-ut"))}
    with pytest.raises(cudt.UserError) as error:
        cudt.load_recipe(settings, changes)
    assert all(message in str(error.value) for message in messages)


# ---------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[cudt.Run, Path]:
    out = tmp_path_factory.mktemp("api")
    return cudt.train(
        cudt.load_recipe("reviews-ut", CHANGES), str(out), device="cpu", quiet=True
    ), out


def test_a_run_is_trained_found_opened_evaluated_and_read(trained, capsys):
    run, out = trained
    assert [found.path for found in cudt.find_runs(str(out))] == [run.path]
    opened = cudt.open_run(str(run.path))
    assert opened.path == run.path
    assert opened.recipe.resolved() == run.recipe.resolved()
    ood = cudt.evaluate(opened, gammas=[0, 0.5], noise_seeds=[0, 1], device="cpu", quiet=True)
    assert set(ood["gamma"]) == {0.0, 0.5}
    assert set(ood["seed"]) == {0, 1}
    assert ood.equals(run.read_table("ood"))
    columns = ("split", "data", "weights", "noise", "gamma", "seed", "value", "low", "high")
    assert tuple(ood.columns) == (*columns, "input", "n")
    layers = run.read_table("layers")
    assert sorted(set(layers[layers["split"] == "test"]["layer"])) == [1, 2, 3]
    more = cudt.evaluate(str(run.path), "0.25:1:0.75", "uniform", device="cpu", quiet=True)
    assert set(more[more["noise"] == "uniform"]["gamma"]) == {0.25, 1.0}
    last = cudt.evaluate(opened, [0.5], weights="last", device="cpu", quiet=True)
    assert set(last["weights"]) == {"last"}
    assert run.rows("ood").reset_index(drop=True).equals(more.reset_index(drop=True))
    cudt.evaluate(run, [0.0], exits=True, device="cpu", quiet=True)
    text = ["the plot was dull"]
    assert cudt.predict(run, text, exit="confidence", device="cpu").layers.shape == (1,)
    assert capsys.readouterr().out == ""


def test_training_again_returns_the_finished_run(trained):
    run, out = trained
    before = run.weights_file("best").stat().st_mtime_ns
    settings = {"name": "reviews-ut", **recipes.read(recipes.locate("reviews-ut"))}
    again = cudt.train(cudt.load_recipe(settings, CHANGES), out, device="cpu", quiet=True)
    assert again.path == run.path
    assert run.weights_file("best").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gammas": [-1]}, "-1"),
        ({"gammas": "1:0:1"}, "grid '1:0:1'"),
        ({"perturbations": ["gausian"]}, "did you mean 'gaussian'"),
        ({"probabilities": [2.0]}, "levels must be ≥ 0 and ≤ 1"),
    ],
)
def test_levels_and_noises_that_do_not_exist_are_refused(trained, arguments, message):
    with pytest.raises(cudt.UserError, match=re.escape(message)):
        cudt.evaluate(trained[0], **arguments, device="cpu", quiet=True)


def test_folders_that_cannot_be_opened_are_skipped_with_a_warning(tmp_path):
    broken = tmp_path / "reviews-ut" / "erm-12345678"
    broken.mkdir(parents=True)
    (broken / "run.json").write_text("{}", encoding="utf-8")
    with pytest.warns(DataWarning, match="skipped: .*erm-12345678"):
        assert cudt.find_runs(tmp_path) == []


# ---------------------------------------------------------------- a training loop of one's own


def loop_in_docstring() -> str:
    """The lines of code in LayerwiseDescent's docstring."""
    lines = (LayerwiseDescent.__doc__ or "").splitlines()
    code = [line for line in lines[1:] if line.startswith(" " * 8)]
    return textwrap.dedent("\n".join(code))


def test_the_loop_in_the_docstring_lowers_the_loss_and_moves_the_multipliers():
    from transformers import AutoModelForSequenceClassification

    from tests.pretrained import CONFIGS

    torch.manual_seed(0)
    config = type(CONFIGS["bert"])(**{**CONFIGS["bert"].to_dict(), "num_hidden_layers": 6})
    model = AutoModelForSequenceClassification.from_config(config).eval()
    tokens = torch.arange(5, 21).reshape(4, 4)
    batch = {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "labels": torch.tensor([0, 1, 0, 1]),
    }
    names: dict[str, typing.Any] = {
        "torch": torch,
        "model": model,
        "data": [batch] * 20,
        "LayerwiseDescent": cudt.LayerwiseDescent,
        "Dual": cudt.Dual,
        "layer_losses": cudt.layer_losses,
    }
    before = cudt.layer_losses(model, batch)
    exec(loop_in_docstring(), names)
    assert cudt.layer_losses(model, batch)[-1] < before[-1] - 0.05
    assert names["descent"].multiplier_values.max() > 0
