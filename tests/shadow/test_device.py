"""The pretended accelerator itself: strict as CUDA, equal to the CPU."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from safetensors.torch import load, save
from torch import nn
from torch.nn import functional

from tests.shadow.device import DEVICE, active, watch

TWO_DEVICES = "Expected all tensors to be on the same device"


@pytest.fixture(autouse=True)
def _active():
    with active():
        yield


def equal(compute) -> bool:
    """Whether a function of the device gives the CPU's numbers there."""
    results = []
    for where in ("cpu", "shadow"):
        torch.manual_seed(0)
        results.append([tensor.detach().cpu() for tensor in compute(torch.device(where))])
    return all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize(
    "mix",
    [
        lambda x, y: x + y,
        lambda x, y: x @ y.T,
        lambda x, y: torch.cat([x, y]),
        lambda x, y: torch.stack([x[0, 0], y[0, 0]]),
        lambda x, y: nn.Linear(3, 1)(x),
        lambda x, y: functional.embedding(y.long(), x),
        lambda x, y: y[0, 0].add_(x.sum()),
        lambda x, y: torch.where(y > 0, x, x),
    ],
)
def test_two_devices_are_refused(mix):
    with pytest.raises(RuntimeError, match=rf"{TWO_DEVICES}.* \(aten::.*test_device.py"):
        mix(torch.ones(2, 3, device="shadow"), torch.ones(2, 3))


def test_numbers_and_indices_may_be_on_the_cpu():
    x = torch.ones(2, 3, device="shadow")
    made = [x * torch.tensor(2.0), torch.where(x > 0, x, torch.tensor(0.0)), torch.tensor(2.0) - x]
    with watch() as seen:
        made += [x[torch.tensor([1])]]
    assert {one.device for one in made} == {DEVICE}
    assert [len(seen.waits), len(seen.copies)] == [0, 1]


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: torch.empty(2, 3).copy_(x),
        lambda x: float(x.sum()),
        lambda x: bool(x.any()),
        lambda x: f"{x.sum():.2f}",
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.nonzero(),
        lambda x: torch.equal(x, x),
        lambda x: x.unique(),
        lambda x: torch.linalg.eigh(x @ x.T),
        lambda x: torch.accelerator.synchronize(),
        lambda x: torch.accelerator.current_stream().synchronize(),
        lambda x: torch.Event(device="shadow").synchronize(),
        lambda x: torch.save(x, io.BytesIO()),
        lambda x: save({"x": x}),
    ],
)
def test_waits_are_recorded_with_their_line(read):
    x = torch.ones(2, 3, device="shadow")
    with watch() as seen:
        read(x)
    assert len(seen.waits) == 1, seen
    assert "test_device.py" in seen.waits[0].line


def test_nothing_else_waits():
    x = torch.ones(2, 3, device="shadow", requires_grad=True)
    with watch() as seen:
        y = functional.layer_norm(x * 2, (3,)).masked_fill(x > 0, 1.0)
        y[:, 1] += 1
        y.sum().backward()
        torch.optim.AdamW([x], fused=True).step()
        _ = x.shape, x.dtype, repr(x), x.detach().clone(), torch.zeros_like(x), x.isfinite().all()
    assert (seen.waits, seen.copies) == ([], [])


def test_copies_to_the_device_block_unless_they_come_from_pinned_memory_and_say_so():
    pinned, plain = torch.ones(3).pin_memory(), torch.ones(3)
    assert (pinned.is_pinned(), pinned[1:].is_pinned(), plain.is_pinned()) == (True, True, False)
    assert torch.empty(3, pin_memory=True).is_pinned()
    with watch() as seen:
        pinned.to("shadow", non_blocking=True)
    assert seen.copies == []
    with watch() as seen:
        pinned.to("shadow")
        plain.to("shadow", non_blocking=True)
        torch.tensor([1.0], device="shadow")
    assert [len(seen.waits), len(seen.copies)] == [0, 3]


def test_pinned_memory_is_differentiable():
    x = torch.ones(3, requires_grad=True)
    pinned = (2 * x).pin_memory()
    assert pinned.is_pinned()
    pinned.to("shadow", non_blocking=True).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_a_copy_to_the_cpu_that_is_read_too_early_is_nonsense():
    x = torch.ones(2, device="shadow")
    with watch() as seen:
        copied, number = x.to("cpu", non_blocking=True), x.long().to("cpu", non_blocking=True)
    assert seen.waits == []
    assert copied.isnan().all()
    assert (number != 1).all()
    done = torch.Event(device="shadow")
    done.record()
    done.synchronize()
    assert torch.equal(copied, torch.ones(2))
    assert torch.equal(number, torch.ones(2, dtype=torch.long))


def test_numpy_refuses_as_on_cuda():
    with pytest.raises(TypeError, match=r"can't convert shadow:0 device type tensor to numpy"):
        torch.ones(2, device="shadow").numpy()


def test_generators_give_the_cpus_numbers_on_their_device_only():
    def on(where: str) -> torch.Generator:
        return torch.Generator(device=where).manual_seed(3)

    assert on("shadow").device == DEVICE
    drawn = torch.randn(4, generator=on("shadow"), device="shadow")
    assert torch.equal(drawn.cpu(), torch.randn(4, generator=on("cpu")))
    with pytest.raises(RuntimeError, match="Expected a 'shadow' device type for generator but found 'cpu'"):
        torch.randn(4, generator=on("cpu"), device="shadow")
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'shadow'"):
        torch.randn(4, generator=on("shadow"))


def test_the_global_generator_is_seeded_saved_and_forked():
    torch.manual_seed(0)
    state = torch.get_device_module("shadow").get_rng_state()
    with torch.random.fork_rng():
        first = torch.rand(2, device="shadow").cpu()
    again = torch.rand(2, device="shadow").cpu()
    torch.get_device_module("shadow").set_rng_state(state)
    assert torch.equal(first, again)
    assert torch.equal(first, torch.rand(2, device="shadow").cpu())


def train_steps(where: torch.device, **options):
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 3)).to(where)
    x, y = torch.randn(5, 8).to(where), torch.tensor([0, 1, 2, 1, 0]).to(where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
    for _ in range(3):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.parameters()


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"foreach": True}], ids=str)
def test_training_gives_the_cpus_weights(options):
    assert equal(lambda where: train_steps(where, **options))


@pytest.mark.parametrize("activate", [functional.silu, functional.gelu, functional.mish, functional.softplus])
def test_activations_have_the_cpus_gradients(activate):
    def differentiate(where: torch.device):
        x = torch.randn(37, 33).to(where).requires_grad_()
        return torch.autograd.grad(activate(x).square().sum(), x)

    assert equal(differentiate)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("dropout", "causal"), [(0.0, False), (0.1, False), (0.0, True)])
def test_attention_gives_the_cpus_numbers(masked, dropout, causal):
    def attend(where: torch.device):
        query, key, value = (torch.randn(2, 2, 5, 8).to(where).requires_grad_() for _ in range(3))
        mask = (torch.arange(5) < 4).expand(2, 1, 5, 5).to(where) if masked and not causal else None
        out = functional.scaled_dot_product_attention(query, key, value, mask, dropout, causal)
        return [out, *torch.autograd.grad(out.square().sum(), (query, key, value))]

    assert equal(attend)


def test_autocast_follows_cudas_rules():
    x, layer = torch.randn(4, 8, device="shadow"), nn.Linear(8, 8).to("shadow")
    with torch.autocast("shadow", dtype=torch.bfloat16):
        product = layer(x)
        others = [functional.layer_norm(product, (8,)), product.softmax(-1), functional.mse_loss(product, product)]
    assert product.dtype == torch.bfloat16
    assert {one.dtype for one in others} == {torch.float32}
    product.sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32


def test_modules_move_keep_shared_weights_and_load():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    weight = first.weight
    model = nn.ModuleList([first, second]).to("shadow")
    assert first.weight is second.weight is weight
    assert weight.device == DEVICE
    copied = copy.deepcopy(model)
    assert copied.get_parameter("0.weight") is copied.get_parameter("1.weight") is not weight
    state = {name: value + 1 for name, value in nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]).state_dict().items()}
    copied.load_state_dict(state)
    assert torch.equal(copied.get_parameter("1.weight").detach().cpu(), state["1.weight"])
    assert model.to(torch.bfloat16).get_parameter("0.weight").dtype == torch.bfloat16
    assert model.to("cpu").get_parameter("0.weight").device.type == "cpu"


def test_data_can_be_exchanged():
    weight = nn.Parameter(torch.ones(2, device="shadow"))
    weight.data = torch.tensor([1.0, 2.0, 3.0], device="shadow")
    assert (weight.shape, weight.sum().item()) == ((3,), 6)


def test_files_are_read_on_the_cpu():
    x = torch.randn(2, 3, device="shadow")
    file = io.BytesIO()
    torch.save({"x": x, "view": x[0]}, file)
    file.seek(0)
    loaded = torch.load(file, map_location="cpu", weights_only=True)
    assert torch.equal(loaded["view"], x[0].cpu())
    assert torch.equal(load(save({"x": x, "y": x + 1}))["x"], x.cpu())


def test_the_device_is_available_only_inside_active():
    assert torch.accelerator.current_accelerator(check_available=True) == torch.device("shadow")
    assert (torch.accelerator.device_count(), torch.accelerator.is_available()) == (1, True)
