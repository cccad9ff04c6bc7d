from __future__ import annotations

import os

import pytest
import torch

from cudt.utils import processes
from cudt.utils.device import accelerator_for, choose, make_current
from cudt.utils.errors import UserError
from tests.processes import commands, environment, free_port, together


def test_a_process_that_is_alone_needs_no_others():
    assert (processes.count(), processes.index(), processes.is_main_process()) == (1, 0, True)
    assert processes.gathered("a") == ["a"]
    assert processes.from_main("a") == "a"
    processes.wait()


def exchange() -> tuple[object, ...]:
    index = processes.index()
    processes.wait()
    return processes.gathered(index), processes.from_main(index)


def test_values_of_all_processes_are_in_their_order():
    assert together(3, exchange) == [([0, 1, 2], 0)] * 3


# ---------------------------------------------------------------- the environment


def set_all(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_what_is_left_over_from_a_launcher_is_refused(monkeypatch):
    set_all(monkeypatch, WORLD_SIZE="2")
    with pytest.raises(
        UserError, match=r"WORLD_SIZE=2 is set, but .*RANK expected.*`unset RANK WORLD_SIZE`"
    ):
        accelerator_for("cpu", "fp32")


@pytest.mark.parametrize(
    "variables", [{"RANK": "1"}, {"LOCAL_RANK": "1"}, {"PMI_SIZE": "4", "PMI_RANK": "3"}]
)
def test_what_is_set_for_processes_that_work_alone_does_not_matter(variables, monkeypatch):
    set_all(monkeypatch, **variables)
    assert accelerator_for("cpu", "fp32").num_processes == 1
    assert processes.is_main_process()
    assert variables.items() <= os.environ.items()


def test_every_process_has_a_device_of_its_own(monkeypatch):
    set_all(monkeypatch, **environment(1, 2, free_port()))
    monkeypatch.setattr("cudt.utils.device.accelerator", lambda: torch.device("xpu"))
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 4)
    assert (choose("auto").index, choose("xpu").index) == (1, 1)
    monkeypatch.setenv("LOCAL_RANK", "6")
    assert choose("auto").index == 2
    assert choose("cpu").type == "cpu"
    made: list[int] = []
    monkeypatch.setattr("torch.accelerator.set_device_index", made.append)
    for name in ("auto", "cpu"):
        make_current(choose(name))
    assert made == [2]


def test_the_cpu_that_accelerate_launch_was_told_to_use(monkeypatch):
    set_all(monkeypatch, ACCELERATE_USE_CPU="True", MASTER_PORT="29500")
    assert choose("auto").type == "cpu"
    with pytest.raises(UserError, match="--device cuda: accelerate launch was started for the CPU"):
        choose("cuda")


def test_other_commands_run_in_one_process(tmp_path):
    first, second = commands(2, "report", tmp_path)
    assert first.code == 2
    assert first.errors.startswith(
        "error: cudt report: runs in one process; start it without torchrun"
    )
    assert second.code == 2
