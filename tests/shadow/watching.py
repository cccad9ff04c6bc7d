"""What the pretended device was waited for: waits and blocking copies, with the operation and the line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

#: The files of the device itself, which are on the stack of every operation.
_DEVICE = {str(Path(__file__).with_name(f"{name}.py")) for name in ("device", "operators", "tensor", "watching")}
_ROOT = Path(__file__).parents[2]
_PACKAGE = str(_ROOT / "cudt")


@dataclass(frozen=True)
class Event:
    """An operation that kept the CPU waiting, and where it was called."""

    operation: str
    line: str
    """The innermost line of cudt, or of whatever else called the operation."""

    def __str__(self) -> str:
        return f"{self.operation} at {self.line}"


@dataclass
class Watch:
    """What was recorded since `watch()` began."""

    waits: list[Event] = field(default_factory=list)
    """The CPU waits until the device has finished: `.item()`, `.cpu()`, `nonzero`, `synchronize`."""
    copies: list[Event] = field(default_factory=list)
    """Copies to the device that the CPU waits for: blocking, or from memory that is not pinned."""

    def __str__(self) -> str:
        lines = [f"wait: {event}" for event in self.waits] + [f"blocking copy: {event}" for event in self.copies]
        return "\n".join(lines) or "no waits and no blocking copies"


_watches: list[Watch] = []


@contextmanager
def watch() -> Iterator[Watch]:
    """Record waits and blocking copies until the block ends; blocks may be nested."""
    made = Watch()
    _watches.append(made)
    try:
        yield made
    finally:
        # By identity: two watches that recorded the same are equal.
        _watches[:] = [one for one in _watches if one is not made]


def record_wait(operation: str) -> None:
    if _watches:
        event = Event(operation, calling_line())
        for one in _watches:
            one.waits.append(event)


def record_copy(operation: str) -> None:
    if _watches:
        event = Event(operation, calling_line())
        for one in _watches:
            one.copies.append(event)


def calling_line() -> str:
    """The innermost line of cudt on the stack; otherwise the innermost one that is not a library's."""
    other = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        line = f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
        if name.startswith(_PACKAGE):
            return line.removeprefix(f"{_ROOT}/")
        if other is None and name not in _DEVICE and "/site-packages/" not in name:
            other = line
        frame = frame.f_back
    # Autograd runs the backward pass of a device in a thread of its own.
    return other or "the backward pass"
