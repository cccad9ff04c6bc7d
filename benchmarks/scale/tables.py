"""The tables of docs/scale.md, from the stored measurements and the formulas; the marks of the page by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks import page
from benchmarks.scale import fits, formulas, machines, paper, stored
from benchmarks.scale.flops import Counted
from benchmarks.scale.lengths import Lengths
from benchmarks.scale.memory import KeptModel, Measured
from benchmarks.scale.traffic import Sent, bytes_sent
from benchmarks.scale.workers import Case, Outcome

GPUS = (1, 8, 64)


def put_all(file: Path, folder: Path = stored.FOLDER) -> None:
    """Write every table into the page."""
    for name, make in TABLES.items():
        # Markdown wants an empty line between a comment and a table.
        page.put_into(file, name, f"\n{make(folder)}\n")


# ---------------------------------------------------------------- the paper


def lengths(folder: Path) -> list[Lengths]:
    return stored.read("lengths", Lengths, folder)


def _paper(folder: Path) -> str:
    rows = []
    found, speed = paper.priced(lengths(folder)), machines.FP32.speed
    for one in found:
        plan, here = (total / speed / 3600 for total in (one.planned, one.operations))
        longest = paper.longest(one.jobs, speed) / 3600
        rows.append([one.name, f"{one.runs}", _hours(plan), _hours(here), f"{here / plan:.2f}", _hours(longest)])
    total = [sum(getattr(one, name) for one in found) / speed / 3600 for name in ("planned", "operations")]
    rows.append(
        [
            "all",
            f"{sum(one.runs for one in found):,}",
            _hours(total[0]),
            _hours(total[1]),
            f"{total[1] / total[0]:.2f}",
            "",
        ]
    )
    return page.table(["experiment", "runs", "plan, GPU-h", "here, GPU-h", "here ÷ plan", "longest job, h"], rows)


def _wall(folder: Path) -> str:
    jobs, rows = paper.all_jobs(paper.priced(lengths(folder))), []
    for precision in (machines.FP32, machines.BF16, machines.H100):
        total = sum(job.operations for job in jobs)
        hours = f"{total / precision.speed / 3600:,.0f}"
        span = f"{total / precision.high / 3600:,.0f}–{total / precision.low / 3600:,.0f}"
        days = [
            f"{paper.wall_time(jobs, gpus, precision.speed, split=split) / 86400:.2g}"
            for split in (False, True)
            for gpus in GPUS[split:]
        ]
        longest = paper.longest(jobs, precision.speed) / 86400
        rows.append([precision.name, f"{precision.speed / 1e12:.0f}", f"{hours} ({span})", f"{longest:.2g}", *days])
    head = ["GPU", "TFLOP/s", "GPU-h (range)", "longest job, days", "1 GPU, days", "8 GPUs", "64 GPUs"]
    return page.table([*head, "8, long runs split", "64, long runs split"], rows)


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"


def _lengths(folder: Path) -> str:
    rows = [
        [one.recipe, f"{one.mean:.0f}", f"{one.padded:.0f}", f"{one.grouped:.0f}", f"{one.padded / one.mean:.2f}"]
        for one in lengths(folder)
    ]
    return page.table(["data of", "tokens of a text", "of a padded batch", "grouped by length", "padding"], rows)


# ---------------------------------------------------------------- formulas against counts


def _checks(folder: Path) -> str:
    counted = stored.read("flops", Counted, folder)
    kept: list[Measured] = stored.read("memory", Measured, folder)
    sent: list[Sent] = stored.read("traffic", Sent, folder)
    model = KeptModel(kept)
    rows = [["operations of updates and evaluations", f"{len(counted)}", _worst([one.error for one in counted]), "–"]]
    for use, what in (("fit", "bytes kept, shapes of the fit"), ("check", "bytes kept, other shapes")):
        some = [one for one in kept if one.use == use]
        errors = [model.kept(one.shape) / one.kept - 1 for one in some]
        bounds = [model.bound(one.shape) / one.peak for one in some]
        # Tiny models need work space that larger ones do not notice.
        also = f"bound of the peak ÷ peak: {_span(bounds)}" if use == "check" else "–"
        rows.append([what, f"{len(some)}", _worst(errors), also])
    for way in ("ddp", "fsdp"):
        errors = [one.formula / one.measured - 1 for one in sent if one.way == way]
        rows.append([f"bytes sent, {way.upper()}, 2 and 3 processes", f"{len(errors)}", _worst(errors), "–"])
    return page.table(["what", "shapes", "largest error of the formula", "also"], rows)


def _worst(errors: list[float]) -> str:
    worst = max(abs(error) for error in errors)
    return "0" if worst < 1e-6 else f"{100 * worst:.1f} %"


def _span(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


# ---------------------------------------------------------------- memory


def _model(folder: Path) -> KeptModel:
    return KeptModel(stored.read("memory", Measured, folder))


def _memory(folder: Path) -> str:
    model, rows = _model(folder), []
    for one in fits.SETUPS:
        total = one.total(model)
        cards = [size for size, room in machines.CARDS.items() if total <= machines.USABLE * room]
        shape = f"{one.shape.examples} × {one.shape.sequences * one.shape.tokens:,}"
        parts = [one.weights, one.learning, one.work(model), total]
        rows.append([one.name, shape, *map(_gigabytes, parts), f"{cards[0]} GB" if cards else "none: FSDP"])
    head = [
        "recipe",
        "examples × tokens",
        "weights",
        "gradients, Adam",
        "kept and work space",
        "total, GB",
        "smallest GPU",
    ]
    return page.table(head, rows)


def _large(folder: Path) -> str:
    model, rows = _model(folder), []
    for one in fits.LARGE:
        counts = {size: one.fewest(model, room) for size, room in machines.CARDS.items()}
        fewest = counts[80]
        each = "–" if fewest is None else _gigabytes(one.sharded(model, fewest))
        state = _gigabytes(one.weights + one.learning)
        rows.append([one.name, state, *(f"{count or '–'}" for count in list(counts.values())[1:]), each])
    return page.table(
        ["model", "weights, gradients, Adam, GB", "40 GB cards", "80 GB cards", "GB on each of these"], rows
    )


def _gigabytes(count: float) -> str:
    return f"{count / 2**30:.2g}" if count < 10 * 2**30 else f"{count / 2**30:,.0f}"


# ---------------------------------------------------------------- communication


def _traffic(folder: Path) -> str:
    by_name = {one.recipe: one for one in lengths(folder)}
    text, instruction = by_name["imdb-roberta"], by_name["alpaca-llama"]
    rows = []
    for one in fits.shared(round(text.padded), round(instruction.padded), round(instruction.read)):
        sent = bytes_sent(one.way, one.shape, 8, dtype=one.bytes)
        alone = formulas.operations(one.shape).update(one.shape.layers) / one.precision.speed
        reached = [
            f"{_count(one.reaches(0.1, link))} / {_count(one.reaches(0.5, link))}" for link in machines.LINKS.values()
        ]
        rows.append([one.name, one.precision.name, f"{alone:.2g}", f"{sent / 1e9:.2g}", *reached])
    return page.table(["update", "GPU", "s on 1 GPU", "GB sent, 8 GPUs", *machines.LINKS], rows)


def _count(gpus: int | None) -> str:
    return "–" if gpus is None else f"{gpus}"


# ---------------------------------------------------------------- workers


def outcomes(folder: Path) -> list[Outcome]:
    return stored.read("workers", Outcome, folder)


def _workers(folder: Path) -> str:
    head = ["workers", "trial, s", "situation", "trials/s", "queue time, s: median, 95 %, worst"]
    head += ["CPU ms per trial: database, worker", "connections", "MB"]
    return page.table(head, [row(one) for one in outcomes(folder) if one.case.start != "idle"])


def _idle(folder: Path) -> str:
    """Workers without a trial: what they do costs no trial, but time."""
    rows = []
    for one in outcomes(folder):
        if one.case.start == "idle":
            shares = [f"{1e3 * cpu / one.span / one.case.workers:.1f}" for cpu in (one.database_cpu, one.client_cpu)]
            rows.append([f"{one.case.workers}", f"{one.case.studies}", *shares])
    return page.table(
        ["waiting workers", "unfinished studies", "database, CPU ms per worker and second", "worker"], rows
    )


def row(one: Outcome) -> list[str]:
    times = ", ".join(f"{value:.2g}" for value in (one.median, one.late, one.worst))
    cpu = f"{1e3 * one.database_cpu:.0f}, {1e3 * one.client_cpu:.0f}"
    errors = f"; {one.errors} errors" if one.errors else ""
    return [
        f"{one.case.workers:,}",
        f"{one.case.trial_seconds:g}",
        situation(one.case) + errors,
        f"{one.rate:.2g}",
        times,
        cpu,
        f"{one.connections}",
        f"{one.database_bytes / 1e6:.1f}",
    ]


def situation(case: Case) -> str:
    """A case in words."""
    parts = [{"running": "under way", "together": "all start at once", "idle": "nothing is waiting"}[case.start]]
    if case.loop == "cudt":
        parts.append("cudt's loop")
    if case.queue == "new":
        parts.append("trials made when asked for")
    if case.waiting:
        parts.append(f"{case.waiting:,} more trials waiting")
    if case.studies > 1:
        parts.append(f"{case.studies} studies")
    if case.shuffled:
        parts.append("any waiting trial instead of the first")
    if case.heartbeat != 60:
        parts.append(f"heartbeat every {case.heartbeat} s")
    if case.storage == "grpc":
        parts.append("gRPC proxy")
    return ", ".join(parts)


def is_plain(case: Case) -> bool:
    """Whether only the number of workers and the length of trials were chosen: two trials a second in all, or none."""
    usual = Case(case.workers, case.trial_seconds, case.seconds, case.start)
    return case == usual and case.workers <= 2 * case.trial_seconds


def _machine(folder: Path) -> str:
    return (folder / "machine.txt").read_text(encoding="utf-8")


TABLES: dict[str, Callable[[Path], str]] = {
    "machine": _machine,
    "paper": _paper,
    "wall": _wall,
    "lengths": _lengths,
    "checks": _checks,
    "memory": _memory,
    "large": _large,
    "traffic": _traffic,
    "workers": _workers,
    "idle": _idle,
}
