from __future__ import annotations

import shutil

import pytest

from cudt.runs.info import RunInfo
from cudt.runs.run import open_run
from cudt.training import train as training
from cudt.utils.errors import TrainingStoppedError
from tests.cli.conftest import SMALL, contents
from tests.conftest import tiny_recipe


def test_a_recipe_that_does_not_fit_its_model_is_refused_and_nothing_is_written(call, tmp_path):
    code, _, error = call(
        "train", "--recipe", "reviews-ut", *SMALL, "--set", "descent.alpha=[0.1, 0.2]"
    )
    assert (code, error.count("\n")) == (2, 1)
    assert error.startswith("error: descent.alpha: ")
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_is_skipped_and_not_changed(call, trained_run):
    out = trained_run.path.parents[1]
    before = contents(out)
    code, output, error = call("train", "--recipe", "reviews-ut", *SMALL, "--out", out)
    assert (code, error) == (0, "")
    assert output.startswith(f"already finished: {trained_run.path}\n")
    assert contents(out) == before


def test_runs_with_another_model_get_a_hint_and_a_name_of_their_own(call, tmp_path):
    other = ["--set", "model.pretrained=/models/gemma", "--data-root", tmp_path]
    _, output, _ = call("train", "--recipe", "alpaca-smollm", *other)
    assert output.startswith(
        "note: runs with model.pretrained = /models/gemma keep the name 'alpaca-smollm'; --name"
    )
    _, output, error = call("train", "--recipe", "alpaca-smollm", *other, "--name", "alpaca-gemma")
    assert "note:" not in output
    assert "training alpaca-gemma (constrained, seed 0) in outputs/alpaca-gemma/" in output
    assert "error: model '/models/gemma'" in error


def folders(*names: tuple[str, int]) -> list[str]:
    return [f"{name}-{tiny_recipe(objective=name, seed=seed).identity()}" for name, seed in names]


def test_several_seeds_and_objectives_are_one_run_each(call, tmp_path):
    code, output, error = call(
        "train",
        "--recipe",
        "reviews-ut",
        *SMALL,
        "--seed",
        "0",
        "1",
        "--objective",
        "erm",
        "constrained",
    )
    assert code == 0
    assert error == ""
    expected = folders(("erm", 0), ("constrained", 0), ("erm", 1), ("constrained", 1))
    assert {path.name for path in tmp_path.glob("outputs/reviews-ut/*")} == {*expected}
    started = [line for line in output.splitlines() if line.startswith("training reviews-ut")]
    assert started == [
        f"training reviews-ut ({name}, seed {seed}) in outputs/reviews-ut/{folder}"
        for (seed, name), folder in zip(
            [(seed, name) for seed in (0, 1) for name in ("erm", "constrained")],
            expected,
            strict=True,
        )
    ]
    summary = output[output.index("reviews-ut: unrolled, score is accuracy") :]
    for folder in expected:
        assert f"\n{folder} " in summary
    assert output.splitlines()[-1] == "next: cudt eval-ood " + " ".join(
        f"outputs/reviews-ut/{folder}" for folder in expected
    )


def test_after_a_run_that_stops_the_next_one_is_trained(call, monkeypatch, tmp_path):
    train = training.train

    def stop_erm(recipe, *rest, **more):
        if recipe.settings.objective == "erm":
            raise TrainingStoppedError("the loss is not finite")
        return train(recipe, *rest, **more)

    monkeypatch.setattr(training, "train", stop_erm)
    code, output, error = call(
        "train", "--recipe", "reviews-ut", *SMALL, "--objectives", "erm", "constrained"
    )
    assert (code, error) == (1, "stopped: the loss is not finite\n")
    (run,) = folders(("constrained", 0))
    assert output.splitlines()[-1] == f"next: cudt eval-ood outputs/reviews-ut/{run}"


@pytest.mark.parametrize("status", ["failed", "interrupted"])
def test_an_unfinished_run_is_resumed(status, call, trained_run, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "train", lambda *_, **__: trained_run)
    path = tmp_path / "outputs" / "reviews-ut" / trained_run.path.name
    shutil.copytree(trained_run.path, path)
    type(trained_run)(path, trained_run.recipe).update_info(RunInfo(status=status))
    code, output, _ = call("train", "--recipe", "reviews-ut", *SMALL)
    assert code == 0
    assert output.startswith(f"resuming {path.relative_to(tmp_path)} ({status})\n")


def test_a_run_that_stops_early_says_so(call, tmp_path):
    stopping = [
        "--set",
        "training.early_stopping=1",
        "--set",
        "training.epochs=9",
        "--set",
        "training.validate_every=2",
    ]
    fast = ["--set", "training.learning_rate=0.3"]
    code, output, _ = call("train", "--recipe", "reviews-ut", *SMALL, *stopping, *fast)
    assert code == 0
    stop = (
        open_run(next((tmp_path / "outputs" / "reviews-ut").iterdir()))
        .finished_info()
        .stopped_early
    )
    assert stop is not None
    line = f"stopped early in epoch {stop.epoch} of 9, after update {stop.step}: no better weights in 1 validation\n"
    assert line in output
    assert ", update " in output.split("(validation data, best epoch ")[1].split(")")[0]
