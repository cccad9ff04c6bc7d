from __future__ import annotations

import torch

from cudt.models.spreading import spread
from cudt.utils.device import all_like
from tests.causal import batch_of, build
from tests.pretrained import tiny_llama
from tests.shadow.device import active

ROWS = [[2, 30, 40, 38, 3], [2, 46, 34, 3]]


def test_layers_on_two_devices_have_the_states_and_gradients_of_one(tmp_path):
    folder, cpu = tiny_llama(tmp_path), torch.device("cpu")
    alone, batch = build(folder), batch_of(ROWS)
    states = alone.layer_states(alone.signal(batch)[0], batch)
    torch.stack([state.square().sum() for state in states]).sum().backward()
    with active():
        shadow = torch.device("shadow")
        both = build(folder, device_map="auto")
        assert both.is_spread
        spread(both, [cpu, shadow])
        assert [next(layer.parameters()).device.type for layer in both.layer_modules()] == ["cpu", "cpu", "shadow"]
        found = both.layer_states(both.signal(batch)[0], batch)
        assert [state.device for state in found] == [cpu] * 3
        torch.stack([state.square().sum() for state in found]).sum().backward()
        for one, other in zip(states, found, strict=True):
            assert torch.equal(one, other)
        for (name, one), other in zip(alone.named_parameters(), both.parameters(), strict=True):
            if one.grad is not None:
                assert other.grad is not None, name
                assert torch.allclose(one.grad, other.grad.cpu(), rtol=1e-4, atol=1e-4), name
    assert list(alone.state_dict()) == list(both.state_dict())


def test_one_device_has_everything(tmp_path):
    model = build(tiny_llama(tmp_path), device_map="auto")
    spread(model, all_like(torch.device("cpu")))
    assert {weight.device.type for weight in model.parameters()} == {"cpu"}


def test_the_default_is_one_device(tmp_path):
    assert not build(tiny_llama(tmp_path)).is_spread
