"""The run folder: run.json, tables to the last bit, one writer at a time, finding runs, export."""

from __future__ import annotations

import math
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from cudt.runs.export import export
from cudt.runs.info import RunInfo
from cudt.runs.run import TABLES, Run, find_runs, open_run, run_for, write_recipe
from cudt.utils.errors import UserError
from tests.conftest import tiny_recipe
from tests.planted import make_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run folder that was begun."""
    made = run_for(tiny_recipe(), tmp_path / "outputs")
    write_recipe(made)
    made.update_info(RunInfo(status="running"))
    return made


def test_numbers_in_tables_come_back_to_the_last_bit(run):
    rng = random.Random(0)
    values = [rng.uniform(-1, 1) * 10 ** rng.randint(-300, 300) for _ in range(300)]
    values += [0.1 + 0.2, 1 / 3, 5e-324, 1e22, math.nextafter(1, 2), -0.0, math.inf]
    rows = [(step, 1, "train", 1, "loss", value) for step, value in enumerate(values)]
    run.write_table("history", pd.DataFrame(rows, columns=[*TABLES["history"]]))
    found = run.read_table("history")
    assert [value.hex() for value in found["value"]] == [value.hex() for value in values]
    assert found["step"].tolist() == [*range(len(values))]


def test_an_incomplete_last_line_of_a_growing_history_is_left_out(run):
    (run.path / "history.csv").write_text(
        "step,epoch,split,layer,name,value\n1,1,train,1,loss,0.5\n2,1,tr"
    )
    assert run.read_table("history")["step"].tolist() == [1]


def test_a_run_has_one_writer_at_a_time(run):
    with (
        run.locked(),
        pytest.raises(UserError, match="another process is using this run"),
        run.locked(),
    ):
        pass
    (run.path / ".ood.csv.1.tmp").touch()
    with run.locked():
        assert not list(run.path.glob("*.tmp"))


def test_runs_are_found_at_any_depth_each_once_and_hidden_ones_are_unfinished_work(run, tmp_path):
    other = tmp_path / "outputs" / "a" / "b"
    shutil.copytree(run.path, other)
    shutil.copytree(run.path, run.path.parent / ".hidden" / "c")
    assert find_runs([tmp_path / "outputs", run.path, tmp_path]) == [other, run.path]
    with pytest.raises(UserError, match="is not a run folder"):
        open_run(tmp_path)


def saved(lines: str | None) -> Any:
    """A model that another library loads by these lines, if any."""
    model = SimpleNamespace(save_pretrained=lambda folder: lines)
    return SimpleNamespace(model=model, task=SimpleNamespace(tokenizer=None))


def test_an_exported_model_has_a_card_that_says_how_it_was_trained(trained_run, tmp_path):
    run = make_run(trained_run, tmp_path / "run", {0.0: 0.9, 1.0: 0.6})
    export(run, saved('model = load("FOLDER")\n'), tmp_path / "mine")
    text = (tmp_path / "mine" / "README.md").read_text(encoding="utf-8")
    assert text.startswith("---\nlibrary_name: transformers\n")
    assert '```python\nmodel = load("mine")\n```' in text
    assert "objective `constrained`, seed 0" in text
    for one in run.finished_info().verdicts:
        assert f"| {one.layer} | {one.loss:.4g} | {one.allowed:.4g} | {one.verdict} |" in text
    assert "| gaussian | γ = 1 | OOD | 0.6 | 0.55 to 0.65 |" in text
    with pytest.raises(UserError, match="mine: already exists"):
        export(run, saved("x"), tmp_path / "mine")


def test_a_model_that_only_cudt_loads_is_refused_and_nothing_is_written(trained_run, tmp_path):
    with pytest.raises(UserError, match="model unrolled has no format of another library"):
        export(trained_run, saved(None), tmp_path / "mine")
    assert not list(tmp_path.iterdir())
