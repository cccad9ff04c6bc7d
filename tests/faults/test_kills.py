"""Commands that are killed at any moment and repeated leave the files of an undisturbed command,
and nothing else."""

from __future__ import annotations

import signal

import pytest

from tests.faults import tools
from tests.faults.tools import assert_nothing_left, assert_same, check_parses, command, train


def test_a_training_that_is_killed_six_times_has_the_files_of_an_undisturbed_one(tmp_path):
    whole = tools.write_project(tmp_path / "whole")
    n_moments = tools.count_moments(whole, *train())
    killed = tools.write_project(tmp_path / "killed")
    for part in (12, 4, 9, 5, 14, 7):
        ended = command(killed, *train(), before=tools.dying_at(n_moments // part))
        assert ended.code == -signal.SIGKILL
        check_parses(killed)
    assert command(killed, *train()).code == 0
    assert_same(killed, whole)
    assert_nothing_left(killed)


def test_a_file_that_is_half_written_would_be_seen(tmp_path):
    for name, content in (
        ("a.json", "{"),
        ("b.csv", "x,y\n1,2\n3"),
        ("c.csv", "x,y\n1\n"),
        ("d.safetensors", ""),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(AssertionError, match=f"{name} is half written"):
            check_parses(tmp_path)
        (tmp_path / name).unlink()
