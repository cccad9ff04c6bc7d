"""The tables of docs/scale.md, from the stored measurements and the formulas; the marks of the page by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks import page
from benchmarks.scale import fits, machines, paper, stored
from benchmarks.scale.flops import Counted
from benchmarks.scale.lengths import Lengths
from benchmarks.scale.memory import KeptModel, Measured
from benchmarks.scale.traffic import Sent
from benchmarks.scale.workers import Case, Outcome


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
            for gpus, split in ((1, False), (8, False), (64, False), (64, True))
        ]
        longest = paper.longest(jobs, precision.speed) / 86400
        rows.append([precision.name, f"{precision.speed / 1e12:.0f}", f"{hours} ({span})", f"{longest:.2g}", *days])
    head = ["GPU", "TFLOP/s", "GPU-h (range)", "longest job, days", "1 GPU, days", "8 GPUs, days", "64 GPUs, days"]
    return page.table([*head, "64 GPUs, long runs split, days"], rows)


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
        also = "layers in fp32 and in bf16" if way == "fsdp" else "–"
        rows.append([f"bytes sent, {way.upper()}, 2 and 3 processes", f"{len(errors)}", _worst(errors), also])
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
        "weights, GB",
        "gradients and Adam, GB",
        "kept and work space, GB",
        "total, GB",
        "smallest card",
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
        ["model", "weights, gradients, Adam, GB", "cards of 40 GB", "cards of 80 GB", "on each of these, GB"], rows
    )


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.2g}" if count < 10e9 else f"{count / 1e9:,.0f}"


# ---------------------------------------------------------------- communication


def shared(folder: Path) -> list[fits.Shared]:
    by_name = {one.recipe: one for one in lengths(folder)}
    text, instruction = by_name["imdb-roberta"], by_name["alpaca-llama"]
    return fits.shared(round(text.padded), round(instruction.padded), round(instruction.read))


def _traffic(folder: Path) -> str:
    rows = []
    for one in shared(folder):
        gpus = one.shape.examples
        cells = [_communication(one, link) for link in machines.LINKS.values()]
        rows.append([one.name, one.precision.name, f"{one.seconds:.2g}", f"{gpus}", _gigabytes(one.sent(gpus)), *cells])
    return page.table(["update", "GPU", "s on 1 GPU", "GPUs", "each sends, GB", *machines.LINKS], rows)


def _communication(one: fits.Shared, link: float) -> str:
    reached = one.reaches(0.1, link)
    return percent(one.share(one.shape.examples, link)) + ("" if reached is None else f" (from {reached})")


def percent(share: float) -> str:
    return "< 1 %" if share < 0.01 else f"{100 * share:.2g} %"


#: GPUs of two machines with 8 each, as in recipes/accelerate/fsdp-2x8.yaml.
_TWO_MACHINES = 16


def _tokens(folder: Path) -> str:
    networks = {name: link for name, link in machines.LINKS.items() if name.endswith("bit/s")}
    rows = []
    for one in (one for one in shared(folder) if one.way == "fsdp"):
        counts = [f"{float(f'{one.tokens(_TWO_MACHINES, link):.2g}'):,.0f}" for link in networks.values()]
        rows.append([one.name, one.precision.name, *counts])
    return page.table(["update", "GPU", *(f"tokens, {name} for each GPU" for name in networks)], rows)


# ---------------------------------------------------------------- workers


def outcomes(folder: Path) -> list[Outcome]:
    return stored.read("workers", Outcome, folder)


_LOOPS = {"optuna": "Optuna's loop", "cudt": "cudt's loop"}


def _workers(folder: Path) -> str:
    head = ["workers", "trial, s", "situation", "trials/s", "queue time, s: median, 95 %, worst"]
    head += ["CPU ms per trial: database, worker", "connections at the start", "database, MB"]
    return page.table(head, [row(one) for one in outcomes(folder) if one.case.start != "idle"])


def _load(folder: Path) -> str:
    """What workers cost per second: in a sweep under way, and without a trial."""
    rows = []
    for one in (one for one in outcomes(folder) if _is_load(one.case)):
        waits = f"wait for {one.case.studies} {'study' if one.case.studies == 1 else 'studies'}"
        doing = waits if one.case.start == "idle" else f"trials of {one.case.trial_seconds:g} s"
        used = [one.cores(cpu) for cpu in (one.database_cpu, one.client_cpu)]
        each = [f"{1e3 * cores / one.case.workers:.2g}" for cores in used]
        rows.append([f"{one.case.workers:,}", _LOOPS[one.case.loop], doing, f"{used[0]:.2f}", *each])
    head = ["workers", "loop", "what they do", "busy cores of the database"]
    return page.table([*head, "database, CPU ms per worker and second", "worker, CPU ms per second"], rows)


def _is_load(case: Case) -> bool:
    """Whether many workers wait, or run trials and nothing else was chosen."""
    return case.start == "idle" or (case.start == "running" and is_plain(case) and case.workers >= 100)


def row(one: Outcome) -> list[str]:
    times = ", ".join(f"{value:.2g}" for value in (one.median, one.late, one.worst))
    cpu = f"{1e3 * one.database_cpu:.0f}, {1e3 * one.client_cpu:.0f}"
    without = max(0, one.case.workers - one.trials) if one.case.start == "together" else 0
    notes = [f"{count} {what}" for count, what in ((without, "workers got none"), (one.errors, "errors")) if count]
    return [
        f"{one.case.workers:,}",
        f"{one.case.trial_seconds:g}",
        "; ".join([situation(one.case), *notes]),
        f"{one.rate:.2g}",
        times,
        cpu,
        f"{one.connections:,}",
        f"{one.database_bytes / 1e6:.1f}",
    ]


def situation(case: Case) -> str:
    """A case in words."""
    parts = [{"running": "under way", "together": "all start at once", "idle": "nothing is waiting"}[case.start]]
    if case.loop == "cudt":
        parts.append(_LOOPS["cudt"])
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
    """Whether only workers, trial length and loop were chosen, with two trials a second in all or a common start."""
    usual = Case(case.workers, case.trial_seconds, case.seconds, case.start, loop=case.loop)
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
    "tokens": _tokens,
    "workers": _workers,
    "load": _load,
}
