from __future__ import annotations

import os
import time
from datetime import timedelta

import pytest
import torch

from cudt.utils import processes
from cudt.utils.device import accelerator_for, choose, make_current
from cudt.utils.errors import DataWarning, ProcessLostError, UserError
from tests import processes as processes_of_tests
from tests.processes import Ended, commands, environment, free_port, together


def test_a_process_that_is_alone_needs_no_others():
    assert (processes.count(), processes.index(), processes.is_main_process()) == (1, 0, True)
    assert processes.gathered("a") == processes.at_main("a") == ["a"]
    assert processes.from_main("a") == "a"
    assert processes.in_order(["a", "b"], 2) == ["a", "b"]
    with processes.first_on_each_machine(), pytest.raises(UserError, match=r"^mine$"), processes.agreed():
        raise UserError("mine")


def exchange() -> tuple[object, ...]:
    index = processes.index()
    processes.wait()
    mine = [f"{index}{letter}" for letter in "ab"]
    found = (processes.gathered(index), processes.from_main(index), processes.at_main(index))
    return (*found, processes.in_order(mine, 5))


def test_values_of_all_processes_are_in_their_order():
    in_order = ["0a", "1a", "2a", "0b", "1b"]
    assert together(3, exchange) == [([0, 1, 2], 0, [0, 1, 2] if not index else [], in_order) for index in range(3)]


def test_the_first_process_of_a_machine_fills_the_cache_for_the_others(tmp_path):
    def look() -> bool:
        with processes.first_on_each_machine():
            found = (tmp_path / "cache").exists()
            time.sleep(0 if found else 0.3)
            (tmp_path / "cache").touch()
        return found

    assert together(3, look) == [False, True, True]


def test_an_error_of_one_process_is_raised_by_all():
    def fail() -> str:
        try:
            with processes.agreed():
                if processes.index() == 1:
                    raise UserError("no clips")
        except UserError as error:
            return str(error)
        return "none"

    assert together(3, fail) == ["process 1 of 3: no clips"] * 3


def test_a_process_that_ended_is_noticed(monkeypatch):
    # The other one need not wait for it before it ends.
    monkeypatch.setattr(processes_of_tests, "PATIENCE", 0.0)

    def end_early() -> str:
        processes.wait()
        if processes.index() == 1:
            os._exit(0)
        with pytest.raises(ProcessLostError) as raised:
            processes.wait()
        return str(raised.value)

    with pytest.raises(AssertionError, match=r"1\.pkl: ended without a result"):
        together(2, end_early)


def test_other_errors_of_torch_stay_what_they_are():
    with pytest.raises(RuntimeError, match="out of memory"), processes.losses_noticed():
        raise RuntimeError("out of memory")


# ---------------------------------------------------------------- the environment


def set_all(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 is set, but RANK, MASTER_ADDR, MASTER_PORT is not set; start all"),
        ({"WORLD_SIZE": "2", "RANK": "1", "MASTER_PORT": "1"}, "but MASTER_ADDR is not set"),
        ({**environment(3, 2, 1)}, "but RANK=3 is not below it"),
    ],
)
def test_what_is_left_over_from_a_launcher_is_refused(variables, message, monkeypatch):
    set_all(monkeypatch, **variables)
    with pytest.raises(UserError, match=message):
        accelerator_for("cpu", "fp32")


def test_a_process_whose_others_do_not_come_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "PATIENCE", timedelta(seconds=2))
    monkeypatch.setattr(processes, "_SILENT", 0.5)
    monkeypatch.setattr("tests.processes.environment", lambda index, count, port: environment(0, 2, port))
    (ended,) = commands(1, "train", "--recipe", "reviews-ut", "--out", tmp_path)
    waiting, error = ended.errors.splitlines()
    assert waiting.startswith("process 0 of 2, which meet at 127.0.0.1:")
    assert "waiting for the others; if there are none, start all processes with torchrun" in waiting
    assert error.startswith("error: process 0 of 2, which meet at 127.0.0.1:")
    assert "unset RANK WORLD_SIZE" in error
    assert ended.code == 2


@pytest.mark.parametrize("variables", [{"RANK": "1"}, {"LOCAL_RANK": "1"}, {"PMI_SIZE": "4", "PMI_RANK": "3"}])
def test_what_is_set_for_processes_that_work_alone_does_not_matter(variables, monkeypatch):
    set_all(monkeypatch, **variables)
    assert accelerator_for("cpu", "fp32").num_processes == 1
    assert processes.is_main_process()
    assert variables.items() <= os.environ.items()


def test_machines_that_gloo_does_not_connect_are_told_of_the_interface(monkeypatch):
    def fail(**options: object) -> None:
        raise RuntimeError("[../gloo/transport/tcp/pair.cc:1] Gloo connectFullMesh failed")

    set_all(monkeypatch, **environment(1, 2, free_port()))
    monkeypatch.setattr("torch.distributed.init_process_group", fail)
    with pytest.raises(UserError, match=r"connectFullMesh failed.*set GLOO_SOCKET_IFNAME to the network interface"):
        processes.join()


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
    with pytest.warns(DataWarning, match="accelerate launch --cpu started one process"):
        accelerator_for("auto", "fp32")


def test_other_commands_run_in_one_process(tmp_path):
    first, second = commands(2, "report", tmp_path)
    assert first.code == 2
    assert first.errors.startswith("error: cudt report: runs in one process; start it without torchrun")
    assert second == Ended(2, "", "")
