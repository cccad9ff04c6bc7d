"""Runs whose checkpoints or history are damaged while they are stopped: the same numbers, or one line that says where.

Restoring is what decides, so every damage is followed by a restore, and each kind of outcome by training to the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from rich.console import Console

from cudt.config.recipe import NamedRecipe
from cudt.models.assemble import assemble
from cudt.runs.find import find_runs, run_for
from cudt.training import launch
from cudt.training.checkpoint import Checkpoints
from cudt.training.checkpoint_file import numbers_in
from cudt.training.display import PlainDisplay
from cudt.training.primal import Primal
from cudt.training.state_tree import taken_apart
from cudt.training.view import TrainingView
from cudt.utils.device import random_state
from cudt.utils.errors import DamagedFileError, DataWarning, TrainingInterruptedError
from tests.cases import Case
from tests.instructions import write_instructions
from tests.pretrained import tiny_llama

OFTEN = ("training.checkpoint_every", 2)
#: Six updates in two epochs each. Stopped after five, the checkpoints are those of the updates 3 and 5.
KINDS = {
    "text": Case("unrolled", "reviews", "linear slack", (OFTEN,)),
    "video": Case("dust", "shapes", "log decay", (OFTEN,)),
    "causal": Case("llama lora", "alpaca", "log slack", (OFTEN,)),
}
STOP = 5
Damage = Callable[[Path, int], None]
BEST, LAST = "checkpoints/best.safetensors", "checkpoints/last.safetensors"
RESULTS = ("history.csv", "layers.csv", BEST, LAST)


class Stopping(PlainDisplay):
    """Stops the training after an update."""

    def __init__(self, step: int) -> None:
        super().__init__(Console(quiet=True))
        self._step = step

    def update(self, view: TrainingView) -> None:
        if view.step == self._step:
            os.kill(os.getpid(), signal.SIGINT)


@dataclass
class Stopped:
    """A run that was stopped, and what undamaged training makes of it."""

    recipe: NamedRecipe
    root: Path
    out: Path
    """The folder of the outputs."""
    whole: dict[str, bytes]
    """The files of the same run without a stop."""
    checkpoints: Checkpoints
    states: dict[str, int]
    """The update of each intact checkpoint, by the digest of what a restore of it gives."""
    without_best: str
    """The digest of the newest checkpoint without its best epoch."""


def train(recipe: NamedRecipe, out: Path, root: Path, stop: int = -1) -> None:
    with contextlib.suppress(TrainingInterruptedError):
        launch.train(recipe, out, "cpu", root, Stopping(stop), export_model=False)


def results(out: Path) -> dict[str, bytes]:
    (run,) = find_runs([out])
    return {name: (run / name).read_bytes() for name in RESULTS}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Runs of a kind, stopped after an update."""
    root = tmp_path_factory.mktemp("data")

    @cache
    def of(kind: str) -> Stopped:
        torch.set_num_threads(1)
        if kind == "causal":
            write_instructions(root)
            tiny_llama(root / "llama")
        folder, recipe = tmp_path_factory.mktemp(kind), KINDS[kind].recipe(root)
        train(recipe, folder / "whole", root)
        train(recipe, folder / "stopped", root, STOP)
        problem = assemble(recipe, root, torch.device("cpu"))
        slack = problem.descent.slack_parameters()
        optimizer = Primal(problem.layerwise.model, slack, recipe.settings.training, 3).optimizer
        run = run_for(recipe, folder / "stopped")
        checkpoints = Checkpoints(run, problem.layerwise, optimizer, problem.descent)
        newest, before = numbers_in(checkpoints.folder)
        states = {restored(checkpoints): newest}
        with damaged(checkpoints.folder / f"checkpoint-{newest}.json", cut, 0), pytest.warns(DataWarning):
            states[restored(checkpoints)] = before
        # One file with the older checkpoint's weights.
        with damaged(run.weights_file("best"), cut, 0), pytest.warns(DataWarning, match="are lost"):
            without_best = restored(checkpoints)
        return Stopped(recipe, root, folder / "stopped", results(folder / "whole"), checkpoints, states, without_best)

    return of


def restored(checkpoints: Checkpoints) -> str:
    """A digest of everything that a restore gives."""
    state, history = checkpoints.restore()
    tree = [checkpoints.optimizer.state_dict(), checkpoints.descent.state_dict(), random_state()]
    plain, tensors = taken_apart([*tree, checkpoints.layerwise.learned_weights()])
    digest = hashlib.sha256(repr((state, history.saved(), plain)).encode())
    for tensor in tensors.values():
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# ---------------------------------------------------------------- damage


def cut(file: Path, size: int) -> None:
    os.truncate(file, size)


def flip(file: Path, bit: int) -> None:
    # In place, so that other names of the same file change, too.
    with file.open("r+b") as opened:
        opened.seek(bit // 8)
        byte = opened.read(1)[0]
        opened.seek(bit // 8)
        opened.write(bytes([byte ^ 1 << bit % 8]))


def damages(file: Path, cuts: int, flips: int) -> Iterator[tuple[Damage, int]]:
    """Ways to damage a file: cut off at places from 0 to its last byte, and random flips of one bit."""
    size, draw = file.stat().st_size, random.Random(file.name)
    yield from ((cut, size * index // cuts) for index in range(cuts - 1))
    yield cut, size - 1
    yield from ((flip, draw.randrange(8 * size)) for _ in range(flips))


def outcome(stopped: Stopped) -> str:
    """What a restore does with the run as it is now."""
    run = stopped.checkpoints.run
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        error: DamagedFileError | None = None
        try:
            digest = restored(stopped.checkpoints)
        except DamagedFileError as refused:
            error = refused
    if error is not None:
        assert error.path.is_relative_to(run.path)
        assert "to train from the beginning" in str(error)
        return f"refused: {error.path.name}"
    lines = [str(one.message) for one in said if issubclass(one.category, DataWarning)]
    if digest == stopped.without_best:
        assert len(lines) == 1
        assert "the best one so far, are lost); the best epoch is chosen among those that follow" in lines[0]
        return "continued without the best epoch"
    # Never a state that is not exactly one of the two that were saved.
    number = stopped.states[digest]
    assert bool(lines) == (number != max(stopped.states.values())), lines
    assert all("damaged (" in line and "; resuming from update" in line for line in lines)
    return f"resumed from {number}"


@contextlib.contextmanager
def damaged(file: Path, damage: Damage, where: int) -> Iterator[None]:
    """A file that is damaged, in place, and mended afterwards."""
    content = file.read_bytes()
    damage(file, where)
    try:
        yield
    finally:
        file.write_bytes(content)


def copy_with_links(source: Path, target: Path) -> None:
    """Copy a folder; files that are one there are one in the copy."""
    known: dict[int, Path] = {}

    def copy(one: str, other: str) -> None:
        inode = Path(one).stat().st_ino
        if inode in known:
            os.link(known[inode], other)
        else:
            shutil.copyfile(one, other)
            known[inode] = Path(other)

    shutil.copytree(source, target, copy_function=copy)


def check(stopped: Stopped, cuts: int, flips: int, tmp: Path) -> dict[str, int]:
    """Damage every file in every way; return how often each outcome was seen."""
    seen: dict[str, int] = {}
    folder = stopped.checkpoints.run.path
    for name in [Path("history.csv"), *sorted(path.relative_to(folder) for path in folder.glob("checkpoints/*"))]:
        for damage, where in damages(folder / name, cuts, flips):
            with damaged(folder / name, damage, where):
                found = outcome(stopped)
                key = f"{name.name}: {found}"
                if key not in seen and not found.startswith("refused"):
                    expected = stopped.whole
                    if found.startswith("continued"):
                        # One epoch follows, so it is the best one; layers.csv is about its weights then.
                        expected = {**expected, BEST: expected[LAST]}
                    trained = trained_on(stopped, tmp / str(len(seen)))
                    assert all(trained[one] == expected[one] for one in RESULTS if one != "layers.csv"), key
                    assert trained["layers.csv"] == expected["layers.csv"] or found.startswith("continued")
            seen[key] = seen.get(key, 0) + 1
    return seen


def trained_on(stopped: Stopped, out: Path) -> dict[str, bytes]:
    """The files of the damaged run after training to its end, in a copy."""
    copy_with_links(stopped.out, out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        train(stopped.recipe, out, stopped.root)
    return results(out)


def test_a_damaged_checkpoint_or_history_never_gives_other_numbers(stopped, tmp_path):
    seen = check(stopped("text"), 1, 1, tmp_path)
    # Every file of the newest checkpoint has the one before; history.csv, if its end is damaged.
    for name in ("checkpoint-4.json", "checkpoint-4.safetensors", "step-5.safetensors"):
        assert [key for key in seen if key.startswith(name)] == [f"{name}: resumed from 3"]
    assert seen["history.csv: resumed from 3"] == 1
    # These two are one file.
    for name in ("best.safetensors", "step-3.safetensors"):
        assert seen[f"{name}: continued without the best epoch"] == 2


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_fifty_cuts_and_two_hundred_flips_of_every_file(stopped, kind, tmp_path):
    seen = check(stopped(kind), 50, 200, tmp_path)
    print(f"{kind}: {seen}")
    assert sum(seen.values()) % 250 == 0
