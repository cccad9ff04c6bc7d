from __future__ import annotations

import shutil

import pytest

from cudt.runs.info import RunInfo
from tests.cli.conftest import contents


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


def test_a_second_grid_is_added_to_the_first(call, copy):
    assert call("eval-ood", "copy", "--device", "cpu")[0] == 0
    first = copy.read_table("ood")
    assert call("eval-ood", "copy", "--gammas", "0.5:2:0.75", "--device", "cpu")[0] == 0
    both = copy.read_table("ood")
    assert both["gamma"].unique().tolist() == [0, 0.5, 1, 1.25, 2]
    # The metric and the loss of each, with both ends of their intervals.
    assert len(both) == 5 * 6
    # A level that was evaluated again has the same value.
    assert both[both["gamma"].isin([0, 0.5, 1])].reset_index(drop=True).equals(first)


@pytest.mark.parametrize(
    "kinds", [["gaussian", "uniform"], ["gaussian,uniform"]], ids=["spaces", "comma"]
)
def test_several_kinds_of_noise_are_one_table(kinds, call, copy):
    code, output, _ = call(
        "eval-ood", "--perturbation", *kinds, "copy", "--gammas", "1", "--device", "cpu"
    )
    assert code == 0
    assert copy.read_table("ood")["perturbation"].unique().tolist() == ["gaussian", "uniform"]
    assert "uniform" in output


def test_the_last_weights_are_evaluated_into_a_subfolder(call, copy):
    code, output, _ = call(
        "eval-ood", "copy", "--weights", "last", "--gammas", "1", "--device", "cpu"
    )
    assert code == 0
    assert output.startswith("copy/last ")
    assert "written to copy/last/ood.csv" in output
    # Their folder stands for these weights, here and in other commands.
    assert call("eval-ood", "copy/last", "--gammas", "1", "--device", "cpu")[:2] == (0, output)
    assert copy.read_table("ood").empty
    assert copy.with_weights("last").read_table("ood")["gamma"].unique().tolist() == [1]


def test_a_run_that_another_process_uses_is_not_evaluated(call, copy):
    with copy.locked():
        code, _, error = call("eval-ood", "copy", "--device", "cpu")
    assert (code, error.count("\n")) == (2, 1)
    assert error.startswith("error: copy: another process is ")


def test_early_exits_are_one_table_and_a_row_for_each_level(call, copy):
    code, output, _ = call("eval-ood", "copy", "--exits", "--gammas", "0,1", "--device", "cpu")
    assert code == 0
    assert "early exit: accuracy, mean number of layers (of 3), share of the FLOPs" in output
    exits = copy.read_table("exits")
    (row,) = exits[
        (exits["split"] == "test")
        & (exits["gamma"] == 1)
        & (exits["rule"] == "patience")
        & (exits["chosen"] == 1)
    ].itertuples()
    lines = output.partition("early exit")[2].splitlines()
    (line,) = [line for line in lines if "γ = 1 " in line]
    assert line.split()[-3:] == [
        f"{row.accuracy:.4f}",
        f"{row.mean_depth:.2f}",
        f"{row.flops / row.full_flops:.0%}",
    ]
    assert max(map(len, lines)) <= 80
