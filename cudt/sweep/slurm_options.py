"""The value of `--slurm`: options of sbatch as `key=value,…`, checked before anything is submitted."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from cudt.utils.errors import UserError, did_you_mean
from cudt.utils.shown import shown

#: Options that cudt sets itself, and what to use instead.
_SET_BY_CUDT = {
    "array": "--workers is the number of jobs, array-parallelism how many run at a time",
    "nodes": "each job is one worker on one node; use --workers for more",
    "ntasks": "each job is one worker; use --workers for more",
    "signal": "cudt asks Slurm for a signal before the time limit, to save the run",
    "requeue": "cudt requeues jobs that are stopped before the sweep has ended",
    "no-requeue": "cudt requeues jobs that are stopped before the sweep has ended",
    "output": "logs are in the folder logs/slurm of the results",
    "error": "logs are in the folder logs/slurm of the results",
    "chdir": "jobs run in the folder of this command",
}
#: A shorter job would be stopped while it starts, and requeued without progress, again and again.
_MIN_MINUTES = 10


@dataclass(frozen=True)
class SlurmOptions:
    """What a job asks Slurm for."""

    minutes: int
    """The time limit of a job."""
    parallelism: int | None
    """How many jobs of the array may run at a time; None is all of them."""
    others: dict[str, str]
    """The remaining options, by the name of sbatch's long option."""


def parse_slurm(text: str) -> SlurmOptions:
    """The options in a text like `partition=gpu,gpus=1,time=08:00:00`; all errors are reported together."""
    values, mistakes = _split(text)
    for key, value in values.items():
        if problem := _problem(key, value):
            mistakes.append(problem)
    if "time" not in values and not mistakes:
        mistakes.append("time is missing: the time limit of a job, for example time=08:00:00")
    if mistakes:
        raise UserError("--slurm: " + "; ".join(mistakes))
    minutes, parallelism = parse_minutes(values.pop("time")), values.pop("array-parallelism", None)
    assert minutes is not None
    return SlurmOptions(minutes, None if parallelism is None else int(parallelism), values)


def parse_minutes(text: str) -> int | None:
    """A time limit as sbatch reads it, in minutes, rounded up; None if it is not one.

    Minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes or days-hours:minutes:seconds.
    """
    if not re.fullmatch(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}", text):
        return None
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if dash:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    else:
        hours, minutes, seconds = {1: [0, *parts, 0], 2: [0, *parts], 3: parts}[len(parts)]
    total = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    return math.ceil(total / 60) or None


def _split(text: str) -> tuple[dict[str, str], list[str]]:
    """The values by key, and what is wrong; a part without `=` belongs to the list before it (`exclude=n1,n2`)."""
    values: dict[str, str] = {}
    mistakes: list[str] = []
    key = ""
    for part in (part.strip() for part in text.split(",")):
        name, equals, value = part.partition("=")
        if equals:
            key = name.strip().lstrip("-").replace("_", "-")
            if key in values:
                mistakes.append(f"{key}: given twice")
            values[key] = value.strip()
        elif part and key in _LISTS:
            values[key] += f",{part}"
        elif part:
            mistakes.append(f"expected KEY=VALUE, got {shown(part)}")
    return values, mistakes


def _problem(key: str, value: str) -> str:
    """What is wrong with an option; empty if nothing is."""
    if key in _SET_BY_CUDT:
        return f"{key}: cannot be set; {_SET_BY_CUDT[key]}"
    if key not in _KINDS:
        hint = did_you_mean(key, _KINDS) or f"; expected one of {', '.join(sorted(_KINDS))}"
        return f"unknown key {shown(key)}{hint}"
    expected, fits = _KINDS[key]
    return "" if fits(value) else f"{key}: expected {expected}, got {shown(value)}"


def _like(pattern: str) -> Callable[[str], bool]:
    return lambda value: re.fullmatch(pattern, value) is not None


_Kind = tuple[str, Callable[[str], bool]]
_TEXT: _Kind = ("a value", _like(r".+"))
_COUNT: _Kind = ("a positive integer", _like(r"0*[1-9]\d*"))
_MEMORY: _Kind = ("a size such as 32G (without a unit: megabytes)", _like(r"(?i)\d+([KMGT]B?)?"))
_GPUS: _Kind = ("a number of GPUs such as 1 or a100:1", _like(r"([\w.-]+:)?\d+"))
_TIME: _Kind = (
    f"minutes or [DAYS-]HH:MM:SS, at least {_MIN_MINUTES} minutes (Slurm asks a job to stop 4 minutes before)",
    lambda value: (parse_minutes(value) or 0) >= _MIN_MINUTES,
)

#: The options of sbatch that say where and with what a job runs.
_KINDS: dict[str, _Kind] = {
    "time": _TIME,
    "array-parallelism": _COUNT,
    "cpus-per-task": _COUNT,
    "cpus-per-gpu": _COUNT,
    "gpus": _GPUS,
    "gpus-per-node": _GPUS,
    "gpus-per-task": _GPUS,
    "mem": _MEMORY,
    "mem-per-cpu": _MEMORY,
    "mem-per-gpu": _MEMORY,
    "nice": ("an integer", _like(r"-?\d+")),
    **dict.fromkeys(("account", "comment", "constraint", "dependency", "exclude", "gres", "job-name"), _TEXT),
    **dict.fromkeys(("licenses", "mail-type", "mail-user", "nodelist", "partition", "qos"), _TEXT),
    **dict.fromkeys(("reservation", "wckey"), _TEXT),
}
#: Options whose value is a list with commas.
_LISTS = {"constraint", "dependency", "exclude", "gres", "licenses", "mail-type", "nodelist", "partition"}
