from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from cudt.reproduce import generated, plan, scale
from cudt.reproduce.plan import PlannedExperiment
from cudt.reproduce.stored import ReproduceOptions
from tests.conftest import train_quietly
from tests.reproduce.scales import listed, scale_of, write_search


def options(folder: Path, **more) -> ReproduceOptions:
    return ReproduceOptions(folder / "out", "cpu", **more)


def printed(made: list[PlannedExperiment]) -> str:
    console = Console(file=StringIO(), width=120, markup=False, emoji=False)
    console.print(plan.table(made))
    console.print("\n".join(plan.lines(made, "a slow machine")), soft_wrap=True)
    return re.sub(r" +", " ", console.file.getvalue())  # type: ignore[attr-defined]


def test_what_is_missing_is_listed_once_with_how_to_get_it_and_nothing_is_written(tmp_path):
    other = write_search(tmp_path, "other", recipe="imdb-ut", fixed=None)
    third = write_search(tmp_path, "third", recipe="imdb-ut", fixed={"training.epochs": 4})
    pair = listed(write_search(tmp_path), hours=0.25)
    # The cheapest first, whatever the order in the file.
    loaded = scale_of(tmp_path, listed(third, hours=1100), listed(other), pair)
    text = printed(plan.make(loaded, options(tmp_path, data_root=tmp_path)))
    assert "1 pair · reviews-ut 0/2 0/2 0.25 \n" in text
    assert "2 other · imdb-ut 0/2 0/2 2 * \n" in text
    assert "3 third · imdb-ut 0/2 0/2 1,100 * \n" in text
    assert text.count("for 2–3: dataset 'stanfordnlp/imdb'") == 1
    assert text.count("for 2–3: model 'distilbert/distilbert-base-uncased'") == 1
    assert (
        "6 runs to train and 6 to evaluate; 1,102 hours, 1,102 of them for what is skipped\n"
        in text
    )
    assert text.endswith("hours: a slow machine\n")
    assert not (tmp_path / "out").exists()


def test_generated_data_are_not_missing(tmp_path):
    (row,) = plan.make(scale_of(tmp_path, listed("smoke-llama", generated=True)), options(tmp_path))
    assert row.missing == []


def test_an_experiment_that_is_done_takes_no_hours(tmp_path):
    loaded = scale_of(tmp_path, listed(write_search(tmp_path), evaluate="none"))
    (row,) = plan.make(loaded, options(tmp_path))
    assert (row.left, row.evaluations, row.hours) == (2, 0, 2.0)
    for arm in ("constrained", "erm"):
        train_quietly(loaded.experiments[0].sweep.recipe({}, arm, {}), tmp_path / "out")
    text = printed(plan.make(loaded, options(tmp_path)))
    assert "2/2 0/0 done" in text
    assert "0 runs to train and 0 to evaluate; 0 hours\n" in text


def test_other_data_that_are_missing_are_marked(tmp_path):
    made = plan.make(
        scale_of(tmp_path, listed("smoke-depth", on=["avenue"])),
        options(tmp_path, data_root=tmp_path),
    )
    (row,) = made
    assert (row.missing, row.unanswerable) == ([], [])
    assert row.untestable[0].startswith(
        f"on avenue: dataset Avenue: no folder training_videos in {tmp_path}/avenue"
    )
    assert (
        f"‡ missing; only evaluations on it are skipped:\n for 1: {row.untestable[0]}\n"
        in printed(made)
    )


def test_completions_without_their_file_are_marked(tmp_path):
    generated.make(tmp_path)
    asked = {"instructions": "eval.json", "get": "ask", "gammas": [0.0]}
    loaded = scale_of(tmp_path, listed("smoke-llama", completions=asked))
    made = plan.make(loaded, options(tmp_path, data_root=tmp_path))
    (row,) = made
    assert row.missing == []
    assert row.unanswerable == [f"completions: file {tmp_path}/eval.json does not exist; ask"]
    assert (
        f"† missing; only the completions are skipped:\n for 1: {row.unanswerable[0]}\n"
        in printed(made)
    )


@pytest.mark.parametrize("name", scale.names())
def test_an_experiment_takes_two_lines_of_a_narrow_terminal(name):
    rows = [
        PlannedExperiment(one, 240, 240, 48, 48, ["data"], [], [])
        for one in scale.load(name).experiments
    ]
    console = Console(file=StringIO(), width=80)
    console.print(plan.table(rows))
    assert len(console.file.getvalue().splitlines()) == 1 + 2 * len(rows)  # type: ignore[attr-defined]
