from __future__ import annotations

import base64
import json
import math
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
    return [make_run(trained_run, tmp_path, CURVE, objective=objective) for objective in ("constrained", "erm")]


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


def test_three_examples_are_shown_at_most(pair):
    save_samples(pair[0], *"edcba")
    assert [sample["name"] for sample in exhibits.samples(read(pair[0]), Pictures())] == ["a", "b", "c"]


def test_an_example_of_only_some_runs_is_shown(pair):
    save_samples(pair[0], "a")
    (first,) = exhibits.samples(read(pair[0]), Pictures())
    assert [picture["title"] for picture in first["pictures"]] == ["constrained, seed 0"]


def test_of_several_seeds_the_first_is_shown(trained_run, tmp_path):
    for seed in (2, 0, 1):
        save_samples(make_run(trained_run, tmp_path, CURVE, seed=seed), "a")
    (sample,) = exhibits.samples(collect([tmp_path]).runs, Pictures())
    assert [picture["title"].split(",")[1] for picture in sample["pictures"]] == [" seed 0"]


def test_of_several_seeds_the_one_with_exhibits_is_shown(trained_run, tmp_path):
    _, second = (make_run(trained_run, tmp_path, CURVE, seed=seed) for seed in (0, 1))
    save_samples(second, "a")
    complete(second, "clean.json", answers("b"))
    runs = collect([tmp_path]).runs
    (sample,) = exhibits.samples(runs, Pictures())
    assert [picture["title"] for picture in sample["pictures"]] == ["constrained, seed 1"]
    ((completed,), _) = exhibits.completions(runs)
    assert completed["answers"][0]["outputs"][0]["title"] == "constrained, seed 1"


def test_of_many_variants_the_best_two_of_each_objective_are_shown(trained_run, tmp_path):
    made = {}
    for alpha, loss in {0.1: 0.5, 0.2: math.nan, 0.3: 0.4, 0.4: 0.6}.items():
        best = {"epoch": 0, "validation_loss": loss}
        made[alpha] = make_run(trained_run, tmp_path, CURVE, overrides=[f"descent.alpha={alpha}"], best=best)
    erm = make_run(trained_run, tmp_path, CURVE, objective="erm", best={"validation_loss": 9.0})
    for run in (*made.values(), erm):
        save_samples(run, "a")
        complete(run, "clean.json", answers("b"))
    wanted = {"constrained α=0.1, seed 0", "constrained α=0.3, seed 0", "erm, seed 0"}
    runs = collect([tmp_path]).runs
    (sample,) = exhibits.samples(runs, Pictures())
    assert {picture["title"] for picture in sample["pictures"]} == wanted
    ((completed,), _) = exhibits.completions(runs)
    assert {output["title"] for output in completed["answers"][0]["outputs"]} == wanted


def test_pictures_beyond_the_budget_are_left_out_and_counted(pair, monkeypatch):
    for run in pair:
        save_samples(run, "a")
    first, second = (run.path / "samples" / "a.png" for run in pair)
    monkeypatch.setattr(exhibits, "_MOST_BYTES", len(base64.b64encode(first.read_bytes())))
    pictures = Pictures()
    (sample,) = exhibits.samples(read(pair[0]), pictures)
    assert len(sample["pictures"]) == 1
    assert pictures.left_out == [second]
    assert pictures.note() == [f"1 picture is not shown, since the page would be too large: {second}"]
    assert pictures.inline(first) is None
    (note,) = pictures.note()
    assert note.startswith("2 pictures are not shown")


def test_a_picture_that_cannot_be_read_is_a_warning(tmp_path):
    pictures = Pictures()
    assert pictures.inline(tmp_path / "gone.png") is None
    assert pictures.note() == [f"{tmp_path / 'gone.png'}: cannot be read (No such file or directory)"]


# ---------------------------------------------------------------- completions


def complete(run: Run, name: str, content: Any) -> Path:
    path = run.path / "completions" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def answers(*texts: str) -> list[dict[str, str]]:
    of = {"generator": "run", "dataset": "ask"}
    return [{"instruction": f"question {number}", "output": text, **of} for number, text in enumerate(texts)]


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
            "outputs": [{"title": f"{name}, seed 0", "text": f"{name} {verb}"} for name in ("constrained", "erm")],
        }
        for number, verb in enumerate(("says", "adds"))
    ]


def test_what_was_written_for_annotators_is_not_shown_twice(pair):
    complete(pair[0], "gaussian-0.5.json", answers("a"))
    complete(pair[0], "gaussian-0.5-against-erm.json", answers("a"))
    shown, _ = exhibits.completions(read(pair[0]))
    assert [one["name"] for one in shown] == ["gaussian-0.5"]


def test_five_answers_are_shown_and_long_ones_are_cut(pair):
    complete(pair[0], "clean.json", answers(*("x" * 2000 for _ in range(7))))
    ((shown,), _) = exhibits.completions(read(pair[0]))
    assert len(shown["answers"]) == 5
    assert shown["answers"][0]["outputs"][0]["text"] == "x" * 1500 + " …"


DAMAGED = {
    "cut off": '[{"instruction": "a", "outp',
    "a number": "3",
    "an object": '{"instruction": "a"}',
    "without an answer": '[{"instruction": "a"}]',
    "answers that are numbers": '[{"instruction": "a", "output": 3, "generator": "b", "dataset": "c"}]',
    "nothing": "",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_a_warning_and_the_rest_is_shown(content, pair):
    broken = complete(pair[0], "a.json", content)
    complete(pair[1], "b.json", answers("fine"))
    (shown,), damaged = exhibits.completions(read(pair[0]))
    assert shown["name"] == "b"
    (line,) = damaged
    assert line.startswith(f"{broken}: damaged (")
