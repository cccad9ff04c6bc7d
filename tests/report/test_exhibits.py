from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from cudt.report import exhibits
from cudt.report.collect import ReadRun, collect
from cudt.report.exhibits import Pictures
from cudt.runs.run import Run
from tests.report import make_run, save_samples

CURVE = {0.0: 0.9, 1.0: 0.6}


@pytest.fixture
def pair(trained_run, tmp_path) -> list[Run]:
    return [
        make_run(trained_run, tmp_path, CURVE, objective=objective)
        for objective in ("constrained", "erm")
    ]


def read(run: Run) -> list[ReadRun]:
    return collect([run.path.parent]).runs


def held(address: str | None) -> str:
    assert address is not None
    return base64.b64decode(address.split(",")[1]).decode()


# ---------------------------------------------------------------- pictures


def test_the_same_example_of_several_runs_is_shown_together(pair):
    for run in pair:
        save_samples(run, "gaussian-b", "gaussian-a")
    shown = exhibits.samples(read(pair[0]), Pictures())
    assert [sample["name"] for sample in shown] == ["gaussian-a", "gaussian-b"]
    for sample in shown:
        for run, picture in zip(pair, sample["pictures"], strict=True):
            objective = run.recipe.settings.objective
            assert picture["title"] == f"{objective}, seed 0"
            assert held(picture["strip"]) == f"{run.path.name} {sample['name']}.png"
            assert picture["strip"].startswith("data:image/png;base64,")


def test_pictures_beyond_the_budget_are_left_out_and_counted(pair, monkeypatch):
    for run in pair:
        save_samples(run, "a")
    first, second = (run.path / "samples" / "a.png" for run in pair)
    monkeypatch.setattr(exhibits, "_MOST_BYTES", len(base64.b64encode(first.read_bytes())))
    pictures = Pictures()
    (sample,) = exhibits.samples(read(pair[0]), pictures)
    assert len(sample["pictures"]) == 1
    assert pictures.left_out == [second]
    assert pictures.note() == [
        f"1 picture is not shown, since the page would be too large: {second}"
    ]
    assert pictures.inline(first) is None
    (note,) = pictures.note()
    assert note.startswith("2 pictures are not shown")


# ---------------------------------------------------------------- completions


def complete(run: Run, name: str, content: Any) -> Path:
    path = run.path / "completions" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def answers(*texts: str) -> list[dict[str, str]]:
    of = {"generator": "run", "dataset": "ask"}
    return [
        {"instruction": f"question {number}", "output": text, **of}
        for number, text in enumerate(texts)
    ]


def test_answers_to_the_same_instruction_are_side_by_side(pair):
    for run in pair:
        word = run.recipe.settings.objective
        complete(run, "gaussian-0.5.json", answers(f"{word} says", f"{word} adds"))
    (shown,), damaged = exhibits.completions(read(pair[0]))
    assert damaged == []
    assert shown["name"] == "gaussian-0.5"
    assert shown["answers"] == [
        {
            "instruction": f"question {number}",
            "outputs": [
                {"title": f"{name}, seed 0", "text": f"{name} {verb}"}
                for name in ("constrained", "erm")
            ],
        }
        for number, verb in enumerate(("says", "adds"))
    ]
