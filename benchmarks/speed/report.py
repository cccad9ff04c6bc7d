"""`cudt report` over 10 and over 500 runs, against importing its libraries and reading the files of the runs once."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.speed.bench import Bench, Outcome, Setting, compared, interleaved
from benchmarks.speed.processes import cpu_of_children, run_python
from benchmarks.speed.report_runs import make_runs

_REPORT = "from cudt.cli.main import main; main()"
_LIBRARIES = "import json, jinja2, matplotlib.pyplot as plt, pandas as pd, plotly, yaml; from pathlib import Path; "
#: The peer: every file of every run, once.
_READ = (
    _LIBRARIES + "runs = Path(sys.argv[1]); "
    "[pd.read_csv(file) for file in runs.rglob('*.csv')]; "
    "[pd.read_parquet(file) for file in runs.rglob('*.parquet')]; "
    "[json.loads(file.read_text()) for file in runs.rglob('*.json')]; "
    "[yaml.load(file.read_text(), yaml.CSafeLoader) for file in runs.rglob('*.yaml')]"
)
#: The limit: as many figures as the report has, each of three panels with a line, as PNG and PDF, on all cores.
_DRAW = """
plt.switch_backend("Agg")
for number in range(int(sys.argv[2])):
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), constrained_layout=True)
    for one in axes:
        one.plot([0, 1, 2], [1, 0, 2], label="line")
        one.set(xlabel="noise level", ylabel="metric", title="panel")
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine(None)
    for kind in ("png", "pdf"):
        figure.savefig(sys.argv[3], format=kind, dpi=150)
    plt.close(figure)
"""


def measure(setting: Setting) -> list[Outcome]:
    return [
        _outcome("report-10", setting, n_recipes=1, seeds=2, rounds=3, allowed=3),
        _outcome("report-500", setting, n_recipes=20, seeds=5, rounds=1, allowed=20),
    ]


def _outcome(name: str, setting: Setting, *, n_recipes: int, seeds: int, rounds: int, allowed: float) -> Outcome:
    """Seconds of `cudt report`, start-up included; `allowed` is the goal.

    Unlike most benches this one has a goal in seconds, and figures are drawn on all cores. So its clock is a wall
    clock, and the goal of the ratio is what is allowed ÷ the peer's time in the same run.
    """
    runs, out = setting.folder / name / "runs", setting.folder / name / "report"
    made = make_runs(runs, n_recipes=n_recipes, seeds=seeds)
    used: list[float] = []

    def report() -> None:
        start = cpu_of_children()
        run_python(_REPORT, "report", str(runs), "--out", str(out), cwd=setting.folder)
        used.append(cpu_of_children() - start)

    read = partial(run_python, _READ, str(runs), cwd=setting.folder)
    ours, peer = interleaved(report, read, rounds=rounds, warmup=0, clock=time.perf_counter)
    n_figures = len(list((out / "figures").glob("*.png")))
    drawing = _seconds(runs, n_figures, setting.folder) - min(peer)
    limit = 1 + drawing / min(peer) / (os.cpu_count() or 1)
    what = f"{made} runs and {n_figures} figures in {statistics.median(ours):.1f} s"
    cores = f"{os.cpu_count()} cores with a load of {os.getloadavg()[0]:.0f}"
    note = f"{what} on {cores}, {statistics.median(used):.1f} CPU s; {allowed:g} s were allowed"
    outcome = compared(ours, peer, "s", limit=limit, note=note)
    return replace(outcome, name=name, goal=round(allowed / outcome.peer, 2))


def _seconds(runs: Path, n_figures: int, folder: Path) -> float:
    """The peer, and as many small figures as the report has, on one core."""
    start = time.perf_counter()
    run_python(f"exec({_READ + _DRAW!r})", str(runs), str(n_figures), str(folder / "figure"), cwd=folder)
    return time.perf_counter() - start


BENCH = Bench(
    name="report",
    what="`cudt report`, start-up included ÷ importing its libraries and reading every file once",
    # Each row has its own: the seconds allowed ÷ the peer's time in the same run.
    goal=3.0,
    higher_is_better=False,
    measure=measure,
)
