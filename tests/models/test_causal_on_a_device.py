"""Losses and gradients of a causal model on the pretended accelerator: the CPU's numbers, without a wait."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cudt.data.batching import Batch, collated, to_device
from cudt.models.layer_losses import LayerwiseLosses
from cudt.models.lora import Lora
from cudt.tasks.alpaca import DialogueTokens
from tests.causal import ROWS, build, instructions
from tests.pretrained import tiny_llama
from tests.shadow.device import active, watch

TASK = instructions()
GRADIENT = torch.tensor([0.25, 0.0, 1.5])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return tiny_llama(tmp_path_factory.mktemp("pretrained") / "llama")


def batch_of_dialogues() -> Batch:
    rows = [torch.tensor(row).numpy() for row in ROWS]
    return collated(TASK, [DialogueTokens(str(number), row, 2) for number, row in enumerate(rows)])


def losses_and_gradients(layerwise: LayerwiseLosses, batch: Batch, settings: dict[str, Any]) -> list[Tensor]:
    """One forward and backward pass, as an update makes them."""
    few = TASK.thinned(batch, 1, "seed") if settings["thinned"] else None
    counts = TASK.weights(batch)
    weights = to_device({"layers": GRADIENT}, counts.device)["layers"]
    announced = weights.unsqueeze(1) * counts if settings["announced"] else None
    losses = layerwise(batch, None, None, few, {2}, announced)
    (weights @ (losses @ counts)).backward()
    return [losses.detach(), *(weight.grad for weight in layerwise.parameters() if weight.grad is not None)]


@pytest.mark.parametrize("lora", [None, Lora(rank=2)], ids=["full", "lora"])
@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize("thinned", [True, False])
def test_no_layer_waits_for_the_device_and_the_numbers_are_the_cpus(folder, lora, announced, thinned):
    settings = {"announced": announced, "thinned": thinned}
    expected = losses_and_gradients(LayerwiseLosses(build(folder, lora=lora), TASK), batch_of_dialogues(), settings)
    with active():
        layerwise = LayerwiseLosses(build(folder, lora=lora), TASK).to("shadow")
        batch = to_device(batch_of_dialogues(), torch.device("shadow"))
        with watch() as seen:
            found = losses_and_gradients(layerwise, batch, settings)
        assert not seen.waits, seen
        assert not seen.copies, seen
        found = [one.cpu() for one in found]
    assert torch.equal(found[0], expected[0])
    # Attention adds up its gradients in another order.
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-6 * other.abs().max().item())


def test_a_measurement_does_not_wait_in_its_layers(folder):
    expected = LayerwiseLosses(build(folder), TASK).judge(batch_of_dialogues())
    with active():
        layerwise = LayerwiseLosses(build(folder), TASK).to("shadow")
        batch = to_device(batch_of_dialogues(), torch.device("shadow"))
        with watch() as seen:
            found = layerwise.judge(batch)
        assert not seen.waits, seen
        found = (found[0].cpu(), found[1].cpu())
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
