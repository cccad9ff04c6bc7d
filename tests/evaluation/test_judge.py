"""The likelihood of completions, against the loss of transformers' own model."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cudt.evaluation import judge as judging
from cudt.evaluation.judge import Judge, repeated_share
from cudt.runs import checksums
from cudt.runs.completions import Completion, CompletionSet, write_completions
from cudt.runs.find import open_run
from cudt.runs.run import Run
from cudt.tasks.prompts import prompt_text
from cudt.utils.errors import DamagedFileError, UserError
from tests.instructions import train, write_instructions, write_recipe
from tests.pretrained import tiny_llama

#: Prompts and completions of several lengths, one of them empty.
ANSWERS = {
    "Say red.": "red",
    "Repeat the colour that follows.\n\nblue": "blue blue blue blue",
    "Say white.": "",
    "Name all the colours that you know, and no other word.": "white, and é 漢",
    "Say it.": "w",
}
ASKED = CompletionSet("ask", 1.5, 0, 12)


def untracked(batches, total, what):
    return batches


def completions(**outputs: str) -> list[Completion]:
    made = {**ANSWERS, **outputs}
    return [
        {"instruction": asked, "output": output, "generator": "x", "dataset": "ask"} for asked, output in made.items()
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("instructions")
    write_instructions(folder)
    write_recipe(folder, tiny_llama(folder / "llama", tie_word_embeddings=False, initializer_range=0.5))
    return folder


@pytest.fixture(scope="module")
def erm(folder, tmp_path_factory) -> Run:
    settings = ("training.epochs=1", "training.learning_rate=3e-2")
    return train(folder, tmp_path_factory.mktemp("outputs"), *settings, objective="erm")


@pytest.fixture
def run(erm, tmp_path) -> Run:
    """A copy of the run, with completions."""
    shutil.copytree(erm.path, tmp_path / "run")
    run = open_run(tmp_path / "run")
    write_completions(ASKED.path(run.results), completions())
    return run


@pytest.fixture
def judge(erm) -> Judge:
    return Judge(erm, "cpu")


# ---------------------------------------------------------------- likelihoods


@pytest.fixture(scope="module")
def expected(folder, erm) -> list[float]:
    """One completion at a time, without padding: minus the loss of the library, with labels for the completion only."""
    from peft import PeftModel

    base = AutoModelForCausalLM.from_pretrained(folder / "llama", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, str(erm.path / "model")).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "llama")
    found = []
    for asked, output in ANSWERS.items():
        prompt = tokenizer(prompt_text(asked, ""))["input_ids"]
        answer = tokenizer(output, add_special_tokens=False)["input_ids"]
        labels = [-100] * len(prompt) + answer
        with torch.no_grad():
            loss = model(input_ids=torch.tensor([prompt + answer]), labels=torch.tensor([labels])).loss
        found.append(-float(loss))
    return found


@pytest.mark.parametrize("size", [1, 2, 8])
def test_the_likelihood_is_that_of_transformers_loss_whatever_the_batch(erm, expected, size):
    found = Judge(erm, "cpu", batch_size=size).scores(completions(), untracked)
    assert [likelihood for _, likelihood, _ in found] == pytest.approx(expected, rel=1e-5, nan_ok=True)
    assert [math.isnan(one) for one in expected] == [False, False, True, False, False]
    assert len({round(one, 3) for one in expected if not math.isnan(one)}) == 4


def test_the_order_of_the_completions_does_not_matter(judge, expected):
    found = judge.scores(completions()[::-1], untracked)
    assert [likelihood for _, likelihood, _ in found] == pytest.approx(expected[::-1], rel=1e-5, nan_ok=True)


def test_tokens_are_those_of_the_text_without_an_end_token(judge):
    # The tokenizer splits a text into its bytes.
    sizes = [tokens for tokens, _, _ in judge.scores(completions(), untracked)]
    assert sizes == [len(output.encode()) for output in ANSWERS.values()]


def test_a_completion_that_does_not_fit_into_the_context_is_refused(judge):
    with pytest.raises(UserError, match=r"the completion of 'Say red.' .* use a judge with a longer context"):
        judge.scores(completions(**{"Say red.": "red " * 1000}), untracked)


@pytest.mark.parametrize(
    ("text", "share"), [("abcdefgh", 0.0), ("abcdabcd", 0.2), ("aaaaaaa", 0.75), ("aaaa", 0.0), ("abc", 0.0)]
)
def test_the_share_of_repeated_four_grams(text, share):
    """abcdabcd has the 4-grams abcd bcda cdab dabc abcd: one of five was there before."""
    assert repeated_share([*text.encode()]) == pytest.approx(share)


def test_an_empty_text_has_no_share_of_repetitions():
    assert math.isnan(repeated_share([]))


# ---------------------------------------------------------------- judged.csv


def test_the_table_has_a_row_for_each_completion(run, judge, expected):
    rows = judge.judge(run, untracked)
    assert rows["number"].tolist() == [1, 2, 3, 4, 5]
    assert rows["tokens"].tolist() == [len(output.encode()) for output in ANSWERS.values()]
    assert rows["log_likelihood"].tolist() == pytest.approx(expected, rel=1e-5, nan_ok=True)
    assert rows["repeated"].isna().tolist() == [False, False, True, False, False]
    assert set(rows["judge"]) == {f"tiny-alpaca/{judge.run.path.name}"}
    assert set(zip(rows["instructions"], rows["gamma"], rows["noise_seed"], rows["max_new_tokens"], strict=True)) == {
        ("ask", 1.5, 0, 12)
    }
    assert "judged.csv" in checksums.recorded(run.path)
    assert run.read_table("judged").equals(rows)


def test_what_is_judged_is_not_judged_again_and_what_is_new_is(run, judge, erm, monkeypatch):
    rows = judge.judge(run, untracked)
    again = Judge(erm, "cpu")
    assert again.is_done(run)
    monkeypatch.setattr("cudt.training.trained.load", lambda *_: pytest.fail("the model was built"))
    assert again.judge(run, untracked).equals(rows)
    monkeypatch.undo()
    asked: list[list[str]] = []
    real = Judge.scores

    def recorded(self, new, *more):
        asked.append([one["output"] for one in new])
        return real(self, new, *more)

    monkeypatch.setattr(Judge, "scores", recorded)
    write_completions(ASKED.path(run.results), completions(**{"Say red.": "blue", "Say more.": "red"}))
    assert not again.is_done(run)
    changed = again.judge(run, untracked)
    assert asked == [["blue", "red"]]
    assert len(changed) == 6
    assert changed["log_likelihood"].tolist()[1:5] == pytest.approx(
        rows["log_likelihood"].tolist()[1:], rel=0, abs=0, nan_ok=True
    )


def test_a_limit_of_tokens_and_a_level_are_rows_of_their_own(run, judge):
    write_completions(CompletionSet("ask", 0.0, 0, 12).path(run.results), completions()[:2])
    rows = judge.judge(run, untracked)
    assert rows["gamma"].tolist() == [0.0] * 2 + [1.5] * 5


def test_the_rows_of_another_judge_stay(run, judge, erm, tmp_path):
    first = judge.judge(run, untracked)
    shutil.copytree(erm.path, tmp_path / "other")
    Judge(open_run(tmp_path / "other"), "cpu").judge(run, untracked)
    assert len(run.read_table("judged")) == 2 * len(first)
    assert judge.judge(run, untracked).equals(first)


def test_a_damaged_table_is_refused_and_a_deleted_one_written_again(run, judge):
    rows = judge.judge(run, untracked)
    path = run.path / "judged.csv"
    path.write_text(path.read_text().replace("ask", "bsk"))
    with pytest.raises(DamagedFileError, match=r"judged.csv: damaged .* run `cudt judge .* --by RUN`"):
        judging.check(run)
    path.unlink()
    judging.check(run)
    assert judge.judge(run, untracked).equals(rows)


def test_a_run_without_completions_is_refused(erm):
    with pytest.raises(UserError, match=r"no completions to judge; run `cudt generate .* --instructions FILE`"):
        judging.check(erm)


def test_a_judge_is_a_finished_erm_run_of_a_causal_model(erm, trained_run, folder, tmp_path):
    judging.check_judge(erm)
    with pytest.raises(UserError, match="does not generate text"):
        judging.check_judge(trained_run)
    constrained = train(folder, tmp_path, "training.epochs=1")
    with pytest.raises(UserError, match="has objective constrained; a judge is a run with objective erm"):
        judging.check_judge(constrained)
