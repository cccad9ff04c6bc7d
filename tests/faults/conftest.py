"""What `make soak` says at its end: one line for each kind of fault."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest


@pytest.fixture
def tally(record_property: Callable[[str, object], None]) -> Callable[[str, int], None]:
    """Count what a test broke, for the summary: `tally("kills", 15)`."""

    def count(what: str, number: int) -> None:
        record_property(f"tally:{what}", number)

    return count


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.option.markexpr != "soak":
        return
    reports = [one for kind in ("passed", "failed", "error") for one in terminalreporter.stats.get(kind, [])]
    terminalreporter.section("soak")
    for line in summary(reports):
        terminalreporter.write_line(line)


def summary(reports: list[Any]) -> list[str]:
    """A line for each file of tests: how many passed and failed, their time, and what they broke."""
    passed, failed, seconds = Counter[str](), Counter[str](), Counter[str]()
    broken: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for report in reports:
        name = PurePosixPath(report.nodeid.partition("::")[0]).stem.removeprefix("test_").replace("_", " ")
        seconds[name] += report.duration
        failed[name] += report.failed
        passed[name] += report.passed and report.when == "call"
        for key, number in report.user_properties if report.when == "call" else ():
            broken[name][str(key).removeprefix("tally:")] += number
    return [
        f"{name:<16} {passed[name]:>4} passed {failed[name]:>4} failed {seconds[name]:>6.0f} s  "
        + ", ".join(f"{number:,} {what}" for what, number in broken[name].items())
        for name in sorted(seconds)
    ]
