from __future__ import annotations

import shutil

from cudt.runs.info import RunInfo


def test_the_report_names_the_runs_that_it_leaves_out(call, copy, trained_run, tmp_path):
    shutil.copytree(trained_run.path, tmp_path / "whole")
    copy.update_info(RunInfo(status="failed", reason="the loss [layer] is not finite"))
    code, output, _ = call("report", tmp_path, "--out", "report")
    assert code == 0
    assert f"warning: {copy.path}: failed (the loss [layer] is not finite)" in output
    assert f"{tmp_path / 'whole'}: not evaluated yet" in output


FIGURE = """
from matplotlib.figure import Figure

from cudt.report.figures.base import Drawing, FigurePlan, FigureType


class Mine(FigureType):
    name, order = "mine", 99

    def of_recipe(self, groups):
        yield FigurePlan("mine", lambda: Drawing(Figure(), "a figure of my own"))


FIGURE = Mine()
"""


def test_a_figure_of_the_user_is_drawn(call, copy, tmp_path, monkeypatch):
    (tmp_path / "users_figure.py").write_text(FIGURE)
    monkeypatch.syspath_prepend(tmp_path)
    code, _, error = call("report", "copy", "--out", "report", "--figure", "users_figure")
    assert code == 2
    assert error.startswith("error: --figure: ")
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "figure.py").write_text(FIGURE)
    code, _, error = call("report", "copy", "--out", "report", "--figure", "users.figure")
    assert (code, error) == (0, "")
    assert len([*tmp_path.glob("report/figures/*mine.png")]) == 1
    assert "a figure of my own" in (tmp_path / "report" / "index.html").read_text()
