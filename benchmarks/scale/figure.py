"""The figure of docs/scale.md: the paper on N GPUs, and how long workers wait for a trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.scale import machines, paper, tables

_GPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_WORKERS = (1, 10, 100, 1000)
_SERIES = {
    ("running", "optuna"): "Optuna's loop, under way",
    ("running", "cudt"): "cudt's loop, under way",
    ("together", "optuna"): "Optuna's loop, start at once",
}


def draw(file: Path, folder: Path) -> None:
    """Draw both panels."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    _wall(left, folder)
    _queue(right, folder)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _wall(axes: Any, folder: Path) -> None:
    jobs = paper.all_jobs(paper.priced(tables.lengths(folder)))
    for precision, color in ((machines.FP32, "tab:blue"), (machines.BF16, "tab:orange")):
        for split, style in ((False, "-"), (True, "--")):
            days = [paper.wall_time(jobs, gpus, precision.speed, split=split) / 86400 for gpus in _GPUS]
            label = precision.name + (", long runs on several GPUs" if split else ", one GPU for each run")
            axes.plot(_GPUS, days, style, marker="o", markersize=3, color=color, label=label)
    axes.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="days", title="The paper's 1,214 runs")
    axes.set_xticks(_GPUS, [str(gpus) for gpus in _GPUS])
    _finish(axes)


def _queue(axes: Any, folder: Path) -> None:
    """Queue time against the number of workers, in a sweep under way and at a common start."""
    plain = [one for one in tables.outcomes(folder) if tables.is_plain(one.case)]
    for (start, loop), label in _SERIES.items():
        rows = [one for one in plain if (one.case.start, one.case.loop) == (start, loop)]
        workers = [one.case.workers for one in rows]
        (line,) = axes.plot(workers, [one.median for one in rows], marker="o", markersize=4, label=f"{label}, median")
        late, color = [one.late for one in rows], line.get_color()
        axes.plot(workers, late, "--", marker="v", markersize=4, color=color, label=f"{label}, 95 %")
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="queue time, s", title="One PostgreSQL, two cores")
    axes.set_xticks(_WORKERS, [f"{count:,}" for count in _WORKERS])
    _finish(axes)


def _finish(axes: Any) -> None:
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
