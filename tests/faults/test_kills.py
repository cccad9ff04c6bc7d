"""Commands that are killed at any moment and repeated leave the files of an undisturbed command, and nothing else."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from cudt.training import checkpoint_file
from cudt.training.checkpoint_file import write_tensors
from tests.conftest import TINY
from tests.faults import tools
from tests.faults.tools import assert_nothing_left, assert_same, check_parses, command, the_run, train
from tests.processes import ending, in_child


def test_a_training_that_is_killed_six_times_has_the_files_of_an_undisturbed_one(tmp_path):
    whole = tools.write_project(tmp_path / "whole")
    n_moments = tools.count_moments(whole, *train("text"))
    killed = tools.write_project(tmp_path / "killed")
    for part in (12, 4, 9, 5, 14, 7):
        ended = command(killed, *train("text"), before=tools.dying_at(n_moments // part))
        assert ended.code == -signal.SIGKILL
        check_parses(killed)
    assert command(killed, *train("text")).code == 0
    assert_same(killed, whole)
    assert_nothing_left(killed)


def test_a_kill_while_safetensors_writes_leaves_nothing(tmp_path, monkeypatch):
    def die(tensors: object, path: Path) -> None:
        # As the library does: a file of its own, next to the given one.
        (path.parent / ".tmpAbCdEf").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_file, "save_file", die)
        assert ending(in_child(lambda: write_tensors(tmp_path / "a.safetensors", {}))) == -signal.SIGKILL
    assert [*tmp_path.iterdir()]
    write_tensors(tmp_path / "a.safetensors", {"x": torch.ones(3)})
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_file_that_is_half_written_would_be_seen(tmp_path):
    for name, content in (("a.json", "{"), ("b.csv", "x,y\n1,2\n3"), ("c.csv", "x,y\n1\n"), ("d.safetensors", "")):
        (tmp_path / name).write_text(content)
        with pytest.raises(AssertionError, match=f"{name} is half written"):
            check_parses(tmp_path)
        (tmp_path / name).unlink()


# ---------------------------------------------------------------- a hundred kills


@dataclass(frozen=True)
class Scenario:
    """A command, on a project in which others have been run before, and how often it is killed."""

    arguments: Callable[[Path], tuple[str, ...]]
    kills: int
    before: tuple[str, ...] = ()
    """Scenarios whose results it needs."""
    workers: int = 0
    """Processes that can be killed without the command."""


def trainings(kind: str, *settings: str) -> Callable[[Path], tuple[str, ...]]:
    return lambda folder: train(kind, *settings, out=kind)


def evaluate(kind: str, *options: str) -> Callable[[Path], tuple[str, ...]]:
    return lambda folder: ("eval-ood", _run(folder, kind), *options, "--device", "cpu")


def _run(folder: Path, kind: str) -> str:
    return str(the_run(folder / kind).relative_to(folder))


def generate(folder: Path) -> tuple[str, ...]:
    asked = ("--instructions", "../data/questions.json", "--gamma", "0.5", "--max-new-tokens", "8")
    return ("generate", _run(folder, "causal"), *asked, "--batch-size", "1", "--device", "cpu")


_NOISES = ("--perturbation", "gaussian", "uniform", "--exits")
_SWEEP = ("sweep", "--search", "../data/search.yaml", "--workers", "2", "--device", "cpu", "--out", "sweep")
_TINY = tuple(part for one in TINY for part in ("--set", one))
SCENARIOS = {
    "text": Scenario(trainings("text"), 15),
    "video": Scenario(trainings("video", "loading.workers=1"), 15),
    "causal": Scenario(trainings("causal"), 15),
    "eval-text": Scenario(evaluate("text", *_NOISES), 10, ("text",)),
    "eval-video": Scenario(evaluate("video", "--save-samples", "2"), 8, ("video",)),
    "eval-causal": Scenario(evaluate("causal", "--workers", "2"), 8, ("causal",), workers=2),
    "generate": Scenario(generate, 6, ("causal",)),
    "sweep": Scenario(lambda _: _SWEEP, 12, workers=2),
    "report": Scenario(lambda _: ("report", "text", "--out", "report"), 7, ("text", "eval-text")),
    "experiment": Scenario(lambda _: ("experiment", "reviews-ut", *_TINY, "--device", "cpu"), 4),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """Projects before and after an undisturbed command of a scenario."""
    root = tmp_path_factory.mktemp("undisturbed")
    made: dict[str, tuple[Path, Path]] = {}

    def project(name: str) -> tuple[Path, Path]:
        if name not in made:
            before = tools.write_project(root / f"before-{name}")
            for earlier in SCENARIOS[name].before:
                assert command(before, *SCENARIOS[earlier].arguments(before)).code == 0
            after = tools.copy_of(before, root / f"after-{name}")
            assert command(after, *SCENARIOS[name].arguments(after)).code == 0
            assert_nothing_left(after)
            made[name] = before, after
        return made[name]

    return project


@pytest.mark.soak
def test_there_are_a_hundred_kills():
    assert sum(scenario.kills for scenario in SCENARIOS.values()) == 100


@pytest.mark.soak
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_command_that_is_killed_at_random_moments_ends_with_the_same_files(name, undisturbed, tally):
    before, after = undisturbed(name)
    scenario, rng = SCENARIOS[name], random.Random(name)
    seconds, n_moments = _measured(scenario, tools.copy_of(before, before.parent / f"measured-{name}"))
    n_killed = n_series = 0
    while n_killed < scenario.kills:
        # Next to the others, for their data.
        folder = tools.copy_of(before, before.parent / f"killed-{name}-{n_series}")
        for _ in range(min(rng.randint(1, 5), scenario.kills - n_killed)):
            n_killed += (was_killed := _kill_once(scenario, folder, rng, seconds, n_moments))
            check_parses(folder)
            if not was_killed:
                break
        ended = command(folder, *scenario.arguments(folder))
        assert ended.code == 0, ended.errors
        assert_same(folder, after)
        assert_nothing_left(folder)
        n_series += 1
    tally("kills", n_killed)


def _measured(scenario: Scenario, folder: Path) -> tuple[float, int]:
    """Seconds and changes of files of a scenario's command."""
    began = time.monotonic()
    n_moments = tools.count_moments(folder, *scenario.arguments(folder))
    return time.monotonic() - began, n_moments


def _kill_once(scenario: Scenario, folder: Path, rng: random.Random, seconds: float, n_moments: int) -> bool:
    """Kill a command, or its workers, or all; whether it was killed before it had ended."""
    arguments = scenario.arguments(folder)
    if rng.random() < 0.5:
        # A worker that dies is replaced, so that the command may succeed.
        moment = rng.randint(1, n_moments)
        return command(folder, *arguments, before=tools.dying_at(moment)).code == -signal.SIGKILL
    process = tools.begin(folder, *arguments)
    time.sleep(rng.uniform(0.02, 0.9) * seconds)
    started = tools.descendants(process)
    whom = rng.choice(["all", "parent", "worker"] if scenario.workers and started else ["all"])
    if whom == "worker":
        rng.choice(started).kill()
        tools.ended(folder, process)
        return True
    if whom == "parent":
        os.kill(process, signal.SIGKILL)
    else:
        tools.kill_all(process)
    code = tools.ended(folder, process).code
    tools.wait_until_gone(started)
    return code == -signal.SIGKILL
