"""Bytes on disk of a run, while it trains and when it is finished, against what it has to keep."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from safetensors.torch import load_file

from benchmarks.speed.bench import Bench, Outcome, Setting
from cudt.config import recipe
from cudt.training import launch
from cudt.training.checkpoint import Checkpoints
from cudt.training.display import PlainDisplay

#: A few megabytes of weights, so that headers do not count.
_CHANGES = [
    *("model.width=512", "model.attention_width=512", "model.tie_layers=false"),
    *("task.train=32", "task.validation=16", "task.test=16", "training.epochs=2", "training.batch_size=16"),
]


def measure(setting: Setting) -> list[Outcome]:
    sizes: list[int] = []
    save = Checkpoints.save

    def watched(self: Checkpoints, *given: object) -> None:
        save(self, *given)  # type: ignore[arg-type]
        sizes.append(disk(self.run.path))

    Checkpoints.save = watched  # type: ignore[method-assign, assignment]
    loaded = recipe.load("reviews-ut", _CHANGES)
    run = launch.train(loaded, setting.folder, "cpu", None, PlainDisplay(Console(quiet=True)))
    weights = sum(value.nbytes for value in load_file(run.weights_file("best")).values())
    distinct = weights * (1 if run.weights_file("best").samefile(run.weights_file("last")) else 2)
    tables = sum(path.stat().st_size for path in run.path.iterdir() if path.is_file())
    # While it trains: two checkpoints, each with the weights and Adam's two moments of each. In a run of two epochs one
    # of them has the weights of the best one.
    finished = Outcome(disk(run.path) / 1e6, (distinct + tables) / 1e6, "MB", limit=1.0, name="disk-of-a-run, finished")
    training = Outcome(max(sizes) / 1e6, (6 * weights + tables) / 1e6, "MB", limit=1.0, name="disk-of-a-run, training")
    return [finished, training]


def disk(folder: Path) -> int:
    """Bytes of all files in a folder, each file once, however many names it has."""
    found = {path.stat().st_ino: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    return sum(found.values())


BENCH = Bench(
    name="disk-of-a-run",
    what="bytes of a run without export ÷ its distinct weights and tables (in training: and optimizer state)",
    goal=1.05,
    higher_is_better=False,
    measure=measure,
)
