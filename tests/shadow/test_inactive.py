"""Outside `active()`, the pretended accelerator changes nothing."""

from __future__ import annotations

import pytest
import torch

import tests.shadow.device  # noqa: F401  (registers the device)


def test_it_is_not_available():
    assert not torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator(check_available=True) is None
    with pytest.raises(RuntimeError, match=r"only inside tests\.shadow\.device\.active"):
        torch.ones(2, device="shadow")


def test_torch_is_not_patched():
    assert torch.Generator.__module__ == "torch._C"
    assert not torch.ones(2).is_pinned()
