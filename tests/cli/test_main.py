from __future__ import annotations

import os
import re
import signal
import warnings
from pathlib import Path

import pandas as pd
import pytest

from cudt import __version__
from cudt.config import recipe
from cudt.runs.run import open_run
from cudt.utils.errors import DataWarning
from tests.cli.conftest import SMALL, contents, cudt
from tests.conftest import tiny_recipe
from tests.videos import noise, write_frames

# ---------------------------------------------------------------- errors


ERRORS = {
    "a typo in a recipe": (
        ["train", "--recipe", "typo.yaml"],
        "typo.yaml: training.epoch: unknown key; did you",
    ),
    "an unknown recipe": (
        ["train", "--recipe", "review-ut"],
        "no recipe is called 'review-ut'; did you mean",
    ),
    "no data root": (
        ["train", "--recipe", "reviews-ut", "--data-root", "gone"],
        "data root 'gone' does not exist",
    ),
    "no CUDA": (
        ["train", "--recipe", "reviews-ut", "--device", "cuda"],
        "--device cuda: torch finds no CUDA device",
    ),
    "a bad grid": (
        ["eval-ood", "empty", "--gammas", "0:1:0"],
        "γ grid '0:1:0': the step must be above 0",
    ),
    "no run folder": (["eval-ood", "empty"], "'empty' is not a run folder"),
    "a missing run folder": (["eval-ood", "gone"], "run folder 'gone' does not exist"),
    "nothing to report": (["report", "empty"], "no finished run below empty"),
    "no folder to report": (["report"], "folder 'outputs' does not exist"),
}


@pytest.mark.parametrize(("arguments", "message"), ERRORS.values(), ids=ERRORS)
def test_an_error_is_one_line_and_writes_nothing(arguments, message, tmp_path):
    (tmp_path / "empty").mkdir()
    text = recipe.locate("reviews-ut").read_text(encoding="utf-8")
    (tmp_path / "typo.yaml").write_text(re.sub(r"epochs: \d+", "epoch: 3", text), encoding="utf-8")
    before = contents(tmp_path)
    done = cudt(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"error: {message}")
    assert len(done.stderr.splitlines()) == 1
    assert contents(tmp_path) == before


STOPPED = {
    "eval-ood": (["eval-ood", "copy"], "cudt.evaluation.evaluate.evaluate_ood"),
    "report": (["report", "copy"], "cudt.report.write"),
    "train": (["train", "--recipe", "reviews-ut", *SMALL], "cudt.training.train.assemble"),
}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(("arguments", "function"), STOPPED.values(), ids=STOPPED)
def test_a_stop_signal_is_one_line_and_the_exit_code(
    arguments, function, number, code, call, copy, monkeypatch, request
):
    before = signal.getsignal(signal.SIGTERM)
    # Where the tests run in the background, Ctrl-C is ignored.
    ctrl_c = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, ctrl_c))
    monkeypatch.setattr(function, lambda *_, **__: os.kill(os.getpid(), number))
    done, _, error = call(*arguments)
    assert (done, error) == (code, "interrupted; run the same command again\n")
    assert signal.getsignal(signal.SIGTERM) == before


# ---------------------------------------------------------------- warnings


def test_a_warning_about_data_is_one_line_and_the_command_continues(call, tmp_path):
    for seed, folder in enumerate(("clips", "others")):
        for name, length in (("walk", 12), ("a [/b] c", 2)):
            write_frames(tmp_path / folder / name, noise(seed, length, 8, 8))
    (tmp_path / "own.yaml").write_text(
        "reproduces: nothing\nneeds: nothing\nexpect: nothing\nmodel: {name: dust}\n"
        "task: {name: folder, train: clips, test: others, frames: 4, size: 8, validation_share: "
        "0.4}\n"
    )
    code, output, error = call("data", "--prepare", "own.yaml")
    assert code == 0
    assert output.startswith("own.yaml: 1 train, 1 validation, 3 test examples")
    lines = error.splitlines()
    assert len(lines) == 2
    for line, split in zip(lines, ("train", "test"), strict=True):
        assert line.startswith(f"warning: skipped {split} clip 'a [/b] c'")
        assert "task.frames" in line


def test_warnings_of_libraries_are_shown_unchanged(call, monkeypatch):
    def warn(_: Path | None) -> dict[str, str]:
        warnings.warn("of a library", FutureWarning, stacklevel=1)
        warnings.warn("of data", DataWarning, stacklevel=1)
        return {"name": ""}

    monkeypatch.setattr("cudt.tasks.base.published", warn)
    with pytest.warns(FutureWarning, match="^of a library$") as others:
        code, output, error = call("data")
    assert (code, output.split(), error) == (0, ["name", "available"], "warning: of data\n")
    assert len(others) == 1


# ---------------------------------------------------------------- help


def test_the_version_is_printed(tmp_path):
    done = cudt("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")


COMMANDS = (
    "experiment",
    "train",
    "eval-ood",
    "sweep",
    "reproduce",
    "generate",
    "runs",
    "compare",
    "report",
    "recipes",
    "data",
    "doctor",
)


def test_help_names_every_command_and_each_has_an_example(call):
    code, output, _ = call("--help")
    assert code == 0
    for command in COMMANDS:
        assert f"│ {command} " in output
        assert f"Example: cudt {command}" in call(command, "--help")[1]


# ---------------------------------------------------------------- all commands in a row


def test_train_eval_ood_and_report_work_one_after_the_other(tmp_path):
    train = ["train", "--recipe", "reviews-ut", *SMALL, "--objective"]
    done = [cudt(*train, objective, cwd=tmp_path) for objective in ("constrained", "erm")]
    found = sorted(tmp_path.glob("outputs/reviews-ut/*"))
    done.append(cudt("eval-ood", *(path.relative_to(tmp_path) for path in found), cwd=tmp_path))
    done.append(cudt("report", cwd=tmp_path))
    assert [one.returncode for one in done] == [0] * 4, "\n".join(one.stderr for one in done)
    trained, _, evaluated, reported = (one.stdout for one in done)
    assert "epoch 2/2, update" in trained
    assert (
        f"next: cudt eval-ood outputs/reviews-ut/constrained-{tiny_recipe().identity()}" in trained
    )
    assert evaluated.count("AUC") == 2
    assert "report: outputs/report/index.html" in reported
    for run in map(open_run, found):
        assert run.info().status == "finished"
        assert run.read_table("ood")["gamma"].unique().tolist() == [0, 0.5, 1]
    table = pd.read_csv(tmp_path / "outputs" / "report" / "table.csv")
    assert table["objective"].tolist() == ["constrained", "erm"]
    tables = [
        line
        for one in done
        for line in one.stdout.splitlines()
        if "outputs" not in line and "epoch" not in line
    ]
    assert max(len(line) for line in tables) <= 80


def test_an_error_of_the_system_is_one_line_and_a_mistake_of_cudt_keeps_its_traceback(
    call, monkeypatch
):
    def fail_with(error: Exception) -> None:
        def names() -> list[str]:
            raise error

        monkeypatch.setattr(recipe, "names", names)

    fail_with(OSError(28, "No space left on device", "run.json"))
    assert call("recipes") == (2, "", "error: [Errno 28] No space left on device: 'run.json'\n")
    fail_with(ValueError("a mistake"))
    with pytest.raises(ValueError, match="a mistake"):
        call("recipes")
