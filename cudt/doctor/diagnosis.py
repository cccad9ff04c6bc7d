"""The contract of a check: a file of this folder with `CHECK`, which looks at one thing and returns diagnoses.

A check imports what may be missing or broken (torch, pandas, optuna) inside its functions. Whatever it raises becomes
a diagnosis, so that one broken package does not hide the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from cudt.doctor.scope import Scope
from cudt.utils.errors import UserError

Severity = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Diagnosis:
    """What a check found: one line, and what to do about it."""

    severity: Severity
    title: str
    advice: str = ""
    """What to do, for everything that is not in order."""
    fix: Callable[[], str] | None = None
    """Repairs it without losing anything that only training can make again; returns what it did."""


@dataclass(frozen=True)
class Check:
    """A part of the examination."""

    title: str
    order: int
    """The lower, the earlier: from the installation to the runs."""
    run: Callable[[Scope], Iterable[Diagnosis]]


def reason_of(error: Exception) -> str:
    """The first line of an error; with its type if it was not written for users."""
    line = (str(error).strip().splitlines() or ["no reason given"])[0]
    return line if isinstance(error, UserError | OSError) else f"{type(error).__name__}: {line}"
