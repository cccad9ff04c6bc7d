"""Copies that are not waited for."""

from __future__ import annotations

import torch

from cudt.utils.transfer import can_pin, sent
from tests.shadow.device import active, watch


def test_values_for_the_cpu_are_not_copied():
    values = torch.ones(3)
    assert sent(values, torch.device("cpu")) is values
    assert not can_pin(torch.device("cpu"))


def test_values_for_a_device_come_from_pinned_memory():
    with active(), watch() as seen:
        arrived = sent(torch.ones(3), torch.device("shadow"))
        assert (seen.waits, seen.copies) == ([], [])
        assert sent(arrived, arrived.device) is arrived


def test_values_for_the_cpu_have_arrived():
    with active():
        values = torch.arange(3.0, device="shadow")
        with watch() as seen:
            arrived = sent(values, torch.device("cpu"))
    assert arrived.tolist() == [0.0, 1.0, 2.0]
    assert len(seen.waits) == 1
