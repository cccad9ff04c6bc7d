from __future__ import annotations

import shutil

from cudt.runs.info import RunInfo


def test_the_report_names_the_runs_that_it_leaves_out(call, copy, trained_run, tmp_path):
    shutil.copytree(trained_run.path, tmp_path / "whole")
    copy.update_info(RunInfo(status="failed", reason="the loss [layer] is not finite"))
    code, output, _ = call("report", tmp_path, "--out", "report")
    assert code == 0
    assert f"note: {copy.path}: failed (the loss [layer] is not finite)" in output
    assert f"{tmp_path / 'whole'}: not evaluated yet" in output
