"""Flash attention by a stand-in that refuses what the kernels refuse, on the pretended accelerator."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import cudt
from cudt.models.assemble import assemble
from cudt.utils.compat import survive_torchvision_mismatch
from cudt.utils.errors import DataWarning, UserError
from tests.shadow.cases import Case, write_data
from tests.shadow.device import DEVICE, active

FLASH = ("model.attention", "flash_attention_2")
BF16 = ("training.precision", "bf16")
LOGGED = ("training.log_every", 1)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


@pytest.fixture
def calls(monkeypatch) -> Iterator[list[bool]]:
    """Whether gradients were computed, for each call of flash attention, which is installed for this test."""
    # Torchvision may not fit torch.
    survive_torchvision_mismatch()
    from transformers import PreTrainedModel, modeling_utils
    from transformers.integrations.flash_attention import get_target_dtype
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    made: list[bool] = []

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
        dtype = get_target_dtype(query, module) or query.dtype
        assert query.device.type == DEVICE.type, "flash attention has no kernel for the CPU"
        assert dtype == torch.bfloat16, f"flash attention has no kernel for {dtype}"
        assert mask is None or mask.dim() == 2
        made.append(torch.is_grad_enabled())
        if mask is not None:
            mask = mask[:, None, None, :].bool().expand(-1, -1, query.shape[2], -1)
            mask = mask.tril() if module.is_causal else mask
        return sdpa_attention_forward(module, query.to(dtype), key.to(dtype), value.to(dtype), mask, **options)

    monkeypatch.setattr(PreTrainedModel, "_flash_attn_can_dispatch", lambda *given, **named: True)
    monkeypatch.setattr(modeling_utils, "lazy_import_flash_attention", lambda name: None)
    modeling_utils.ALL_ATTENTION_FUNCTIONS["flash_attention_2"] = attend
    yield made
    del modeling_utils.ALL_ATTENTION_FUNCTIONS["flash_attention_2"]


def losses(case: Case, root: Path, out: Path) -> Any:
    with active(), warnings.catch_warnings():
        # Twelve examples are too few for some checks of the data.
        warnings.simplefilter("ignore", DataWarning)
        run = cudt.train(case.recipe(root), out, "shadow", root, quiet=True)
        cudt.evaluate(run, device="shadow", data_root=root, quiet=True)
    history = run.read_table("history")
    return history[history["name"] == "loss"]["value"].to_numpy()


@pytest.mark.parametrize(
    ("model", "task", "setting"),
    [
        ("bert", "text", BF16),
        pytest.param("llama", "alpaca", BF16, marks=pytest.mark.slow),
        pytest.param("llama lora", "alpaca", ("model.dtype", "bf16"), marks=pytest.mark.slow),
    ],
)
def test_updates_and_only_they_use_flash_attention(root, tmp_path, calls, model, task, setting):
    expected = losses(Case(model, task, "linear slack", (setting, LOGGED)), root, tmp_path / "auto")
    assert not calls
    found = losses(Case(model, task, "linear slack", (setting, LOGGED, FLASH)), root, tmp_path / "flash")
    # bf16 has eight bits.
    assert found == pytest.approx(expected, rel=2**-6)
    assert calls
    assert all(calls)


@pytest.mark.parametrize(
    ("device", "changes", "reason"),
    [
        ("cpu", (FLASH, BF16), r"no flash attention on the CPU; set model\.attention to auto"),
        ("shadow", (FLASH,), r"computes in bf16; set training\.precision to bf16"),
    ],
)
def test_what_flash_attention_cannot_do_is_refused(root, calls, device, changes, reason):
    recipe = Case("bert", "text", "erm", changes).recipe(root)
    with active(), pytest.raises(UserError, match=rf"^model\.attention = 'flash_attention_2': .*{reason}"):
        assemble(recipe, root, torch.device(device))


def test_it_is_an_error_if_it_is_not_installed(root):
    recipe = Case("bert", "text", "erm", (FLASH, BF16)).recipe(root)
    with active(), pytest.raises(UserError, match=r"installed; set model\.attention to auto"):
        assemble(recipe, root, DEVICE)
