"""Bytes that a checkpoint writes of history.csv after many epochs, against the first epochs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.speed.bench import Bench, Outcome, Setting, SkippedError
from cudt.config import recipe
from cudt.runs.find import run_for
from cudt.training.history import History

EPOCHS, UPDATES, LAYERS = 400, 20, 24


def measure(setting: Setting) -> list[Outcome]:
    io = Path("/proc/self/io")
    if not io.exists():
        raise SkippedError("written bytes are counted in /proc/self/io, which only Linux has")
    run, history = run_for(recipe.load("smoke-text"), setting.folder), History()
    written = []
    for epoch in range(EPOCHS):
        for update in range(UPDATES):
            step = 100_000 + epoch * UPDATES + update
            values = {name: [0.123456789] * LAYERS for name in ("loss", "violation", "multiplier")}
            history.record(step, 1_000 + epoch, "train", range(1, LAYERS + 1), values)
        before = _bytes(io)
        history.append(run)
        written.append(_bytes(io) - before)
    # The first checkpoint writes the header as well.
    first, last = written[1], written[-1]
    size = (run.path / "history.csv").stat().st_size
    rewritten = sum(size * (epoch + 1) / EPOCHS for epoch in range(EPOCHS))
    note = f"{sum(written) / 1e6:.1f} MB written for {size / 1e6:.1f} MB; rewriting the file: {rewritten / 1e6:.0f} MB"
    return [Outcome(last / 1e3, first / 1e3, "kB/checkpoint", limit=1.0, note=note)]


def _bytes(io: Path) -> int:
    """Bytes that this process gave the system to write."""
    return next(int(line.split()[1]) for line in io.read_text().splitlines() if line.startswith("wchar"))


BENCH = Bench(
    name="history-append",
    what=f"bytes of history.csv that a checkpoint writes after {EPOCHS} epochs ÷ after the second",
    goal=1.05,
    higher_is_better=False,
    measure=measure,
)
