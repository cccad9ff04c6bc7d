"""The public Python API: `import cudt`."""

from __future__ import annotations

import inspect
import textwrap
import typing
from pathlib import Path

import pytest
import torch
import yaml

import cudt
from cudt.method.descent import LayerwiseDescent
from tests.conftest import TINY

CHANGES = {key: yaml.safe_load(value) for key, value in (item.split("=") for item in TINY)}


def test_every_public_name_exists_and_is_documented():
    for name in cudt.__all__:
        found = getattr(cudt, name)
        assert inspect.getdoc(found), name
        assert inspect.isfunction(found) or inspect.isclass(found)
    assert len(cudt.__all__) <= 12
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        cudt.tarin  # noqa: B018


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[cudt.Run, Path]:
    out = tmp_path_factory.mktemp("api")
    loaded = cudt.load_recipe("reviews-ut", CHANGES)
    return cudt.train(loaded, str(out), device="cpu", quiet=True), out


def test_a_run_is_trained_found_opened_evaluated_and_read(trained, capsys):
    run, out = trained
    assert [found.path for found in cudt.find_runs(str(out))] == [run.path]
    opened = cudt.open_run(str(run.path))
    assert opened.recipe.resolved() == run.recipe.resolved()
    ood = cudt.evaluate(opened, gammas=[0, 0.5], noise_seeds=[0, 1], device="cpu", quiet=True)
    assert set(ood["gamma"]) == {0.0, 0.5}
    assert set(ood["seed"]) == {0, 1}
    assert ood.equals(run.read_table("ood"))
    more = cudt.evaluate(str(run.path), "0.25:1:0.75", ["uniform"], device="cpu", quiet=True)
    assert set(more[more["noise"] == "uniform"]["gamma"]) == {0.25, 1.0}
    last = cudt.evaluate(opened, [0.5], weights="last", device="cpu", quiet=True)
    assert set(last["weights"]) == {"last"}
    cudt.evaluate(run, [0.0], exits=True, device="cpu", quiet=True)
    text = ["the plot was dull"]
    assert cudt.predict(run, text, exit="confidence", device="cpu").layers.shape == (1,)
    assert capsys.readouterr().out == ""
    with pytest.raises(cudt.UserError):
        cudt.evaluate(run, perturbations=["gausian"], device="cpu", quiet=True)


def test_the_loop_in_the_docstring_lowers_the_loss_and_moves_the_multipliers():
    from transformers import AutoModelForSequenceClassification

    from tests.pretrained import CONFIGS

    lines = (LayerwiseDescent.__doc__ or "").splitlines()[1:]
    code = textwrap.dedent("\n".join(line for line in lines if line.startswith(" " * 8)))
    torch.manual_seed(0)
    config = type(CONFIGS["bert"])(**{**CONFIGS["bert"].to_dict(), "num_hidden_layers": 6})
    model = AutoModelForSequenceClassification.from_config(config).eval()
    tokens = torch.arange(5, 21).reshape(4, 4)
    batch = {"input_ids": tokens, "labels": torch.tensor([0, 1, 0, 1])}
    names: dict[str, typing.Any] = {"torch": torch, "model": model, "data": [batch] * 20}
    for name in ("LayerwiseDescent", "Dual", "layer_losses"):
        names[name] = getattr(cudt, name)
    before = cudt.layer_losses(model, batch)
    exec(code, names)
    assert cudt.layer_losses(model, batch)[-1] < before[-1] - 0.05
    assert names["descent"].multiplier_values.max() > 0
