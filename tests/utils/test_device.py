from __future__ import annotations

import warnings

import pytest
import torch

from cudt.utils import device
from cudt.utils.errors import UserError


def test_auto_is_the_accelerator_if_there_is_one(monkeypatch):
    assert device.choose("auto") == device.choose("cpu") == torch.device("cpu")
    monkeypatch.setattr(device, "accelerator", lambda: torch.device("xpu"))
    assert device.choose("auto") == device.choose("xpu") == torch.device("xpu")
    assert device.choose("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda", "cud"])
def test_a_device_that_torch_does_not_find_is_refused(name):
    with pytest.raises(
        UserError, match=f"--device {name}: torch finds no {name.upper()} device; use --device cpu"
    ):
        device.choose(name)


def test_mps_is_refused_because_it_lacks_double_precision():
    with pytest.raises(UserError, match=r"--device mps: .* double precision"):
        device.choose("mps")


@pytest.mark.parametrize(
    ("capabilities", "has_it"),
    [
        (
            {"architecture": "x86_64", "avx512_f": True, "avx512_bf16": False, "amx_bf16": False},
            False,
        ),
        ({"architecture": "x86_64", "avx512_bf16": True}, True),
        ({"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": True}, True),
        ({"architecture": "arm64", "neon": True}, False),
        ({"architecture": "arm64", "neon": True, "bf16": True}, True),
    ],
)
def test_bf16_works_on_every_cpu_and_is_warned_of_where_it_is_slow(
    capabilities, has_it, monkeypatch
):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert device.cpu_has_bf16() == has_it
    device._warn_of_slow_bf16.cache_clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = [device.accelerator_for("cpu", precision) for precision in ("fp32", "bf16", "bf16")]
    # Once, however many runs follow.
    expected = "training.precision: bf16: this CPU has no instructions for bf16"
    assert [str(one.message).startswith(expected) for one in seen] == ([] if has_it else [True])
    assert found[-1].mixed_precision == "bf16"


def test_earlier_versions_of_torch_are_asked_in_their_way(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    for amx in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda amx=amx: amx)
        assert device.cpu_has_bf16() == amx


def test_tf32_is_used_on_cuda_only_and_only_inside():
    before = torch.get_float32_matmul_precision()
    with device.matmul_in(True, torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == "high"
    with device.matmul_in(True, torch.device("cpu")):
        assert torch.get_float32_matmul_precision() == before
    with device.matmul_in(False, torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == before
    assert torch.get_float32_matmul_precision() == before == "highest"
