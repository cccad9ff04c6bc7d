"""States of optimisers and generators come back from JSON and safetensors to the last bit."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load, save

from cudt.training.shards import sharded_moments
from cudt.training.state_tree import put_together, taken_apart
from cudt.utils.errors import UserError


def through_files(tree):
    plain, tensors = taken_apart(tree)
    return put_together(json.loads(json.dumps(plain)), load(save(tensors)))


def is_same(one, other) -> bool:
    return type(one) is type(other) and repr(one) == repr(other)


def test_numbers_that_json_does_not_know_come_back():
    found = through_files([math.nan, math.inf, -math.inf, -0.0, 5e-324, 0.1 + 0.2, 2**200])
    assert math.isnan(found[0])
    assert is_same(found[1:], [math.inf, -math.inf, -0.0, 5e-324, 0.1 + 0.2, 2**200])


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]
)
def test_tensors_come_back_whatever_memory_they_share(dtype):
    values = torch.arange(24).to(dtype)
    parts = {"step": values[3].clone(), "whole": values, "part": values[4:9]}
    found = through_files(
        {0: parts, "turned": [values.reshape(4, 6).T], "none": torch.empty(0, 3, dtype=dtype)}
    )
    assert found["none"].shape == (0, 3)
    pairs = [(found[0][name], part) for name, part in parts.items()]
    for one, other in [*pairs, (found["turned"][0], values.reshape(4, 6).T)]:
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_a_fused_optimiser_goes_on_with_weights_in_another_order_than_files():
    """Orthogonal weights are stored by columns."""
    start, gradient = torch.randn(6, 4).T, torch.randn(4, 6)
    first, second = (torch.nn.Parameter(start.clone()) for _ in range(2))
    assert not first.is_contiguous()
    optimizer, resumed = (torch.optim.Adam([weight], fused=True) for weight in (first, second))
    first.grad = torch.empty_like(first).copy_(gradient)
    optimizer.step()
    second.data.copy_(first)
    resumed.load_state_dict(sharded_moments(through_files(optimizer.state_dict()), resumed))
    second.grad = torch.empty_like(second).copy_(-gradient.sqrt().nan_to_num())
    first.grad.copy_(second.grad)
    optimizer.step()
    resumed.step()
    assert torch.equal(first, second)


@pytest.mark.parametrize("bad", [{1.5: 1}, b"bytes", {"x": object()}, torch.eye(2).to_sparse()])
def test_what_a_file_cannot_hold_is_an_error_that_names_it(bad):
    with pytest.raises(UserError, match=r"a checkpoint cannot hold state\.optimizer"):
        taken_apart({"optimizer": bad})
