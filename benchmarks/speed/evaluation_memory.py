"""Memory that an evaluation takes for ten times as many examples, at 24 layers and 15 noise levels."""

from __future__ import annotations

from pathlib import Path

from benchmarks.speed.bench import Bench, Outcome, Setting, SkippedError
from benchmarks.speed.processes import run_python

FEW, MANY, LAYERS, LEVELS = 2_500, 25_000, 24, 15
#: A tiny run of 24 layers is evaluated. Its losses are drawn at random, batch by batch: the model's own memory depends
#: on the batch alone. What counts is the peak above the start of the evaluation, when model and data are in memory and
#: freed memory was given back to the system.
_CHILD = f"""
import ctypes, gc, sys
from pathlib import Path
import pyarrow.dataset, torch
from rich.console import Console
from cudt.config import recipe
from cudt.evaluation import evaluate
from cudt.evaluation.grid import Grid
from cudt.method.measurement import Measurement
from cudt.training import launch
from cudt.training.display import PlainDisplay

def kilobytes(key):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith(key))

def drawn(layerwise, batches, noise, levels):
    for batch in batches:
        n = len(batch["ids"])
        losses = torch.rand(len(levels), 2, {LAYERS}, n, dtype=torch.double)
        yield [Measurement(*pair, torch.ones(n, dtype=torch.double), [*batch["ids"]]) for pair in losses]

def watched(*given, evaluate_kind=evaluate._evaluate_kind):
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = kilobytes("VmRSS")
    evaluate_kind(*given)
    print(kilobytes("VmHWM") - before, file=sys.stderr)

evaluate.measure_batches, evaluate._evaluate_kind = drawn, watched
changes = ["model.layers={LAYERS}", "model.width=8", "model.attention_width=4", "training.epochs=1"]
data = ["task.train=64", "task.validation=64", f"task.test={{sys.argv[1]}}"]
loaded = recipe.load("reviews-ut", [*changes, *data, "noise.gamma_train=0.0"])
run = launch.train(loaded, Path(sys.argv[2]), "cpu", None, PlainDisplay(Console(quiet=True)))
levels = [0.15 * number for number in range({LEVELS})]
evaluate.evaluate_ood(run, Grid(levels), "cpu", None, lambda batches, total, what: batches)
"""


def measure(setting: Setting) -> list[Outcome]:
    if not Path("/proc/self/clear_refs").exists():
        raise SkippedError("the peak of a process's memory is read from /proc, which only Linux has")
    few, many = (_peak(n, setting.folder) for n in (FEW, MANY))
    kept = 2 * LAYERS * LEVELS * MANY * 8 / 1e6
    note = f"losses and scores of all examples are {kept:.0f} MB; they are in a temporary file"
    return [Outcome(many, few, "MB", limit=1.0, note=note)]


def _peak(n: int, folder: Path) -> float:
    """MB that an evaluation of n examples takes."""
    printed = run_python(f"exec({_CHILD!r})", str(n), str(folder), cwd=folder)
    return int(printed.split()[-1]) / 1e3


BENCH = Bench(
    name="evaluation-memory",
    what=f"memory of an evaluation of {MANY:,} examples ÷ of {FEW:,}, × {LAYERS} layers × {LEVELS} levels",
    goal=1.1,
    higher_is_better=False,
    measure=measure,
)
