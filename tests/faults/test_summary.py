"""The summary of `make soak`."""

from __future__ import annotations

from types import SimpleNamespace

from tests.faults.conftest import summary


def test_each_file_has_a_line_with_what_it_broke():
    def report(test: str, when: str, seconds: float, *properties: tuple[str, int], failed: bool = False):
        return SimpleNamespace(
            nodeid=f"tests/faults/{test}",
            when=when,
            duration=seconds,
            user_properties=properties,
            failed=failed,
            passed=not failed,
        )

    lines = summary(
        [
            report("test_kills.py::a", "setup", 2.0),
            report("test_kills.py::a", "call", 60.0, ("tally:kills", 70)),
            report("test_kills.py::a", "teardown", 0.0, ("tally:kills", 70)),
            report("test_kills.py::b", "call", 8.0, ("tally:kills", 30), failed=True),
            report("test_full_disk.py::c", "call", 3.0),
        ]
    )
    assert [line.split() for line in lines] == [
        ["full", "disk", "1", "passed", "0", "failed", "3", "s"],
        ["kills", "1", "passed", "1", "failed", "70", "s", "100", "kills"],
    ]
