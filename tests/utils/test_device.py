from __future__ import annotations

import pytest
import torch

from cudt.utils import device
from cudt.utils.errors import UserError
from tests.shadow.device import DEVICE, active, watch


def test_auto_is_the_accelerator_if_there_is_one():
    assert device.choose("auto") == device.choose("cpu") == torch.device("cpu")
    with active():
        assert device.choose("auto") == device.choose("shadow") == torch.device("shadow")
        assert device.choose("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda", "shadow", "cud"])
def test_a_device_that_torch_does_not_find_is_refused(name):
    with pytest.raises(UserError, match=f"--device {name}: torch finds no {name.upper()} device; use --device cpu"):
        device.choose(name)


def test_mps_is_refused_because_it_lacks_double_precision():
    with pytest.raises(UserError, match=r"--device mps: .* double precision"):
        device.choose("mps")


def test_accelerate_takes_the_device():
    with active():
        assert device.accelerator_for("auto", "fp32").device == torch.device("shadow")
        bf16 = device.accelerator_for("shadow", "bf16")
        with bf16.autocast():
            assert (torch.ones(2, 2, device="shadow") @ torch.ones(2, 2, device="shadow")).dtype == torch.bfloat16
        assert device.accelerator_for("cpu", "bf16").device == torch.device("cpu")
    assert device.accelerator_for("auto", "bf16").mixed_precision == "no"


def test_names():
    assert device.name_of(torch.device("cpu")) == "cpu"
    assert device.name_of(DEVICE) == "pretended accelerator"


def test_the_state_of_the_accelerators_generator_is_kept():
    assert device.generator_state() is None
    with active():
        torch.manual_seed(0)
        state = device.generator_state()
        first = torch.rand(2, device="shadow").tolist()
        device.set_generator_state(state)
        assert torch.rand(2, device="shadow").tolist() == first
    # A run that was begun on an accelerator can be resumed without one.
    device.set_generator_state(state)


def test_waiting_for_the_accelerator():
    with active(), watch() as seen:
        device.synchronize()
        device.empty_cache()
    assert len(seen.waits) == 1
    device.synchronize()


def test_tf32_is_used_on_cuda_only_and_only_inside():
    before = torch.get_float32_matmul_precision()
    with device.matmul_in(True, torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == "high"
    with device.matmul_in(True, torch.device("cpu")):
        assert torch.get_float32_matmul_precision() == before
    with device.matmul_in(False, torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == before
    assert torch.get_float32_matmul_precision() == before == "highest"
