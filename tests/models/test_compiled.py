from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cudt.config import recipe
from cudt.config.models import Lora
from cudt.data import hub
from cudt.models.compiled import compile_layers
from cudt.models.encoder_network import Encoder
from cudt.models.layer_losses import LayerwiseLosses
from cudt.training.train import assemble_model
from cudt.utils.errors import UserError
from tests import causal, shapes
from tests.conftest import tiny_recipe, train_quietly
from tests.models.test_encoder import PADDED, batch_of
from tests.pretrained import tiny_llama, tiny_pretrained


def encoder(folder: str) -> Encoder:
    torch.manual_seed(0)
    return Encoder(hub.load_encoder(folder, None), n_classes=2, readout="mean").eval()


def unrolled(folder: Path, name: str, tied: str) -> LayerwiseLosses:
    if name == "unrolled":
        loaded = tiny_recipe(f"model.tie_layers={tied}")
    else:
        keys = f"{{name: {name}, layers: 3, patch: 8, atoms: 9, tie_layers: {tied}}}"
        loaded = recipe.load(str(shapes.write_recipe(folder, name, keys)))
    return assemble_model(loaded, None, torch.device("cpu"))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Callable[..., Any]]:
    """What was compiled. Dynamo traces it, but runs it uncompiled: torch's compiler takes minutes
    on a CPU.

    With `fullgraph`, code that Dynamo cannot trace is an error; otherwise it would run uncompiled,
    unnoticed.
    """
    compiled: list[Callable[..., Any]] = []
    real = functools.partial(torch.compile, backend="eager", fullgraph=True)

    def record(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled.append(function)
        return real(function)

    monkeypatch.setattr(torch, "compile", record)
    torch.compiler.reset()
    return compiled


@pytest.mark.parametrize("family", ["bert", "distilbert", "albert"])
def test_compiled_layers_have_the_same_states_gradients_and_names(tmp_path, calls, family):
    folder, batch = tiny_pretrained(tmp_path, family), batch_of(PADDED)
    plain, compiled = encoder(folder), encoder(folder)
    compile_layers(compiled)
    # ALBERT uses one layer three times.
    assert len(calls) == (1 if family == "albert" else 3)
    assert list(plain.state_dict()) == list(compiled.state_dict())
    for model in (plain, compiled):
        states = model.layer_states(model.signal(batch)[0], batch)
        assert len(states) == 3
        torch.stack(
            [model.readout(state, batch).square().sum() for state in states]
        ).sum().backward()
    for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        if one.grad is None or other.grad is None:
            assert one.grad is other.grad
        else:
            assert torch.allclose(one.grad, other.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("lora", [None, Lora(rank=2)], ids=["full", "lora"])
def test_layers_of_a_causal_model_are_compiled_whole(tmp_path, calls, lora):
    plain, compiled = (causal.build(tiny_llama(tmp_path), lora=lora) for _ in range(2))
    compile_layers(compiled)
    batch = causal.batch_of(causal.ROWS)
    assert len(calls) == plain.n_layers
    for one, other in zip(
        causal.states_of(plain, batch), causal.states_of(compiled, batch), strict=True
    ):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["unrolled", "unrolled_video", "dust"])
@pytest.mark.parametrize("tied", ["true", "false"])
def test_compiled_layers_of_unrolled_models_have_the_same_gradients_and_names(
    tmp_path, calls, name, tied
):
    plain, compiled = (unrolled(tmp_path, name, tied) for _ in range(2))
    compile_layers(compiled.model)
    assert len(calls) == 1
    assert list(plain.state_dict()) == list(compiled.state_dict())
    batch = plain.task.collate(plain.task.examples("train")[:3])
    for layerwise in (plain, compiled):
        layerwise(batch).sum().backward()
    for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.allclose(one.grad, other.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler needs g++")
def test_a_run_whose_layers_are_really_compiled_has_the_same_losses(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    torch.compiler.reset()
    losses = []
    for compiles in ("false", "true"):
        run = train_quietly(
            tiny_recipe("training.epochs=1", f"training.compile={compiles}"), tmp_path
        )
        history = run.read_table("history")
        losses.append(history[history["name"] == "loss"]["value"].to_numpy())
    assert len(losses[0]) == 12
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert list((tmp_path / "cache").rglob("*.cpp"))


def test_models_without_layers_to_compile_are_refused(tmp_path, monkeypatch):
    model = unrolled(tmp_path, "unrolled", "true").model
    monkeypatch.setattr(model, "layer_modules", list)
    with pytest.raises(UserError, match=r"training\.compile: UnrolledTransformer has no layers"):
        compile_layers(model)
