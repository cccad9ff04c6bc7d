from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from cudt.utils import allocator

#: Page faults in ten steps of training, after as many to warm up.
FAULTS = """
import resource
import sys
import torch
from cudt.utils.allocator import keep_freed_memory

torch.set_num_threads(1)
if sys.argv[1] == "kept":
    assert keep_freed_memory()
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(4)))
inputs = torch.ones(2**15, 64)  # states of 8 MB
for step in range(20):
    if step == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    model(inputs).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can keep freed memory")
def test_kept_memory_is_not_asked_of_the_system_again():
    def faults(mode: str) -> int:
        done = subprocess.run([sys.executable, "-c", FAULTS, mode], capture_output=True, text=True, check=True)
        return int(done.stdout)

    # How many pages a fault brings depends on the system.
    assert 5 * faults("kept") < faults("default")


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not allocator.keep_freed_memory.__wrapped__()
