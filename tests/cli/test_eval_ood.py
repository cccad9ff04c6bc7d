"""`cudt eval-ood`: what it prints and refuses; tests/parts/test_evaluation.py has its numbers."""

from __future__ import annotations

import shutil

import pytest

from cudt.runs.info import RunInfo
from tests.cli.conftest import contents

CPU = ("--device", "cpu")


@pytest.mark.parametrize("status", ["running", "failed", "interrupted"])
def test_if_one_run_is_unfinished_none_is_evaluated(status, call, copy, trained_run, tmp_path):
    shutil.copytree(trained_run.path, tmp_path / "whole")
    copy.update_info(RunInfo(status=status))
    before = contents(tmp_path)
    code, _, error = call("eval-ood", "whole", "copy")
    assert code == 2
    assert error.startswith(f"error: 'copy' is {status}, not finished; ")
    assert len(error.splitlines()) == 1
    assert contents(tmp_path) == before


def test_a_run_is_one_table_with_a_line_for_each_level_and_a_second_call_skips_it(call, copy):
    code, output, _ = call("eval-ood", "copy", *CPU)
    assert code == 0
    lines = output.splitlines()
    assert lines[0].strip() == "copy: gaussian noise"
    assert lines[1].split() == ["level", "accuracy", "95", "%", "interval", "loss", "lower", "best"]
    assert [line.split()[2] for line in lines[2:5]] == ["0", "0.5", "1"]
    assert max(map(len, lines)) <= 80
    assert "written to copy/ood.csv" in output
    before = contents(copy.path)
    code, again, _ = call("eval-ood", "copy", *CPU)
    assert again.splitlines() == ["already evaluated: copy (--again repeats it)", *lines]
    assert contents(copy.path) == before
    assert "already" not in call("eval-ood", "copy", "--again", *CPU)[1]


@pytest.mark.parametrize("kinds", [["gaussian", "uniform"], ["gaussian,uniform"]])
def test_several_kinds_of_noise_are_one_table(kinds, call, copy):
    code, output, _ = call("eval-ood", "--perturbation", *kinds, "copy", "--gammas", "1", *CPU)
    assert code == 0
    assert copy.rows("ood")["noise"].tolist() == ["gaussian", "uniform"]
    assert [line.split()[0] for line in output.splitlines()[2:4]] == ["gaussian", "uniform"]


def test_the_last_weights_have_rows_of_their_own(call, copy):
    code, output, _ = call("eval-ood", "copy", "--weights", "last", "--gammas", "1", *CPU)
    assert code == 0
    assert output.startswith("copy-last: ")
    assert copy.rows("ood").empty
    assert copy.with_weights("last").rows("ood")["gamma"].tolist() == [1]


def test_early_exits_are_columns_of_the_same_table(call, copy):
    code, output, _ = call("eval-ood", "copy", "--exits", "--gammas", "0,1", *CPU)
    assert code == 0
    lines = output.splitlines()
    assert lines[1].split()[-3:] == ["exit", "layers", "FLOPs"]
    assert all(line.endswith("%") for line in (one.rstrip() for one in lines[2:4]))
    assert max(map(len, lines)) <= 80


def test_a_run_that_another_process_uses_is_not_evaluated(call, copy):
    with copy.locked():
        code, _, error = call("eval-ood", "copy", *CPU)
    assert (code, error.count("\n")) == (2, 1)
    assert error.startswith("error: copy: another process is ")


def test_runs_are_evaluated_by_several_workers_and_one_that_fails_stops_no_other(call, copy):
    other = shutil.copytree(copy.path, copy.path.with_name("other"))
    (other / "checkpoints" / "best.safetensors").write_bytes(b"")
    code, output, error = call("eval-ood", "copy", "other", "--workers", "2", *CPU)
    assert code == 1
    assert error.startswith("error: other: other/checkpoints/best.safetensors: damaged")
    assert "copy: gaussian noise" in output
    assert len(copy.rows("ood")) == 3
