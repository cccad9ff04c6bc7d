from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from cudt import __version__
from cudt.cli import main as cli
from cudt.config import recipe
from cudt.runs.info import RunInfo
from cudt.runs.run import Run, open_run
from cudt.utils.errors import DataWarning
from tests.conftest import TINY, tiny_recipe
from tests.videos import noise, write_frames

#: The command-line form of TINY.
SMALL = [word for setting in TINY for word in ("--set", setting)]
CommandLine = Callable[..., tuple[int, str, str]]


def environment() -> dict[str, str]:
    """One thread, no CUDA device, no colours, and nothing of the user's own settings."""
    left_out = ("CUDT_DATA_ROOT", "COLUMNS", "FORCE_COLOR", "CLICOLOR_FORCE")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TERM": "dumb"}


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=120)


def cudt(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "cudt", *map(str, arguments), cwd=cwd)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    """A command in this process, in an empty folder: exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)
    for name in ("CUDT_DATA_ROOT", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cudt", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        printed = capsys.readouterr()
        return int(stop.value.code or 0), printed.out, printed.err

    return run


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Time and bytes of every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


# ---------------------------------------------------------------- mistakes


MISTAKES = {
    "a typo in a recipe": (["train", "--recipe", "typo.yaml"], "typo.yaml: training.epoch: unknown key; did you"),
    "an unknown recipe": (["train", "--recipe", "review-ut"], "no recipe is called 'review-ut'; did you mean"),
    "no data root": (["train", "--recipe", "reviews-ut", "--data-root", "gone"], "data root 'gone' does not exist"),
    "no CUDA": (["train", "--recipe", "reviews-ut", "--device", "cuda"], "--device cuda: torch sees no CUDA device"),
    "a bad grid": (["eval-ood", "empty", "--gammas", "0:1:0"], "γ grid '0:1:0': the step must be above 0"),
    "no run folder": (["eval-ood", "empty"], "'empty' is not a run folder"),
    "a missing run folder": (["eval-ood", "gone"], "run folder 'gone' does not exist"),
    "nothing to report": (["report", "empty"], "no finished run below empty"),
    "no folder to report": (["report"], "folder 'outputs' does not exist"),
}


@pytest.mark.parametrize(("arguments", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(arguments, message, tmp_path):
    (tmp_path / "empty").mkdir()
    text = recipe.locate("reviews-ut").read_text(encoding="utf-8")
    (tmp_path / "typo.yaml").write_text(re.sub(r"epochs: \d+", "epoch: 3", text), encoding="utf-8")
    before = contents(tmp_path)
    done = cudt(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"error: {message}")
    assert len(done.stderr.splitlines()) == 1
    assert contents(tmp_path) == before


@pytest.mark.parametrize("command", ["train", "report"])
def test_a_file_in_the_place_of_the_output_folder_is_told(command, call, trained_run, tmp_path):
    (tmp_path / "file").write_text("mine")
    arguments = {"train": ["--recipe", "reviews-ut", *SMALL], "report": [trained_run.path]}[command]
    code, _, error = call(command, *arguments, "--out", "file")
    assert code == 2
    assert error.startswith("error: ")
    assert "file" in error
    assert len(error.splitlines()) == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_a_bad_change_is_told(call, tmp_path):
    code, _, error = call("train", "--recipe", "reviews-ut", "--set", "training.epochs")
    assert (code, error.count("\n")) == (2, 1)
    assert error.startswith("error: --set 'training.epochs': write key=value")
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_that_its_model_cannot_follow_leaves_nothing_behind(call, tmp_path):
    code, _, error = call("train", "--recipe", "reviews-ut", *SMALL, "--set", "descent.alpha=[0.1, 0.2]")
    assert (code, error) == (2, "error: descent.alpha: 2 descent rates for a model of 3 layers\n")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- warnings


def test_a_warning_about_data_is_one_line_and_the_command_goes_on(call, tmp_path):
    for folder in ("clips", "others"):
        for name, length in (("walk", 12), ("a [/b] c", 2)):
            write_frames(tmp_path / folder / name, noise(0, length, 8, 8))
    (tmp_path / "own.yaml").write_text(
        "reproduces: nothing\nneeds: nothing\nexpect: nothing\nmodel: {name: dust}\n"
        "task: {name: folder, train: clips, test: others, frames: 4, size: 8, validation_share: 0.4}\n"
    )
    code, output, error = call("data", "--prepare", "own.yaml")
    assert (code, output) == (0, "own.yaml: 1 train, 1 validation, 3 test examples are ready\n")
    assert error.splitlines() == [
        f"warning: {split} clip 'a [/b] c' is left out: 2 frames, and a window has 4 (task.frames)"
        for split in ("train", "test")
    ]


def test_other_warnings_are_shown_as_they_are_elsewhere(call, monkeypatch):
    def warn(_: Path | None) -> list[str]:
        warnings.warn("of a library", FutureWarning, stacklevel=1)
        warnings.warn("of data", DataWarning, stacklevel=1)
        return ["done"]

    monkeypatch.setattr("cudt.tasks.holdings.lines", warn)
    with pytest.warns(FutureWarning, match="^of a library$") as others:
        code, output, error = call("data")
    assert (code, output, error) == (0, "done\n", "warning: of data\n")
    assert len(others) == 1


# ---------------------------------------------------------------- questions


def test_the_version_is_told(tmp_path):
    done = cudt("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")


def test_recipes_are_listed_with_what_they_need(call):
    code, output, _ = call("recipes")
    assert code == 0
    assert "reviews-ut" in output
    assert "nothing; the reviews are" in output
    assert max(map(len, output.splitlines())) <= 80


def test_help_names_every_command(call):
    code, output, _ = call("--help")
    assert code == 0
    for command in ("train", "eval-ood", "report", "recipes", "data"):
        assert command in output


def test_help_answers_without_the_heavy_imports(tmp_path):
    trace = python("-X", "importtime", "-m", "cudt", "--help", cwd=tmp_path).stderr
    loaded = {line.split("|")[-1].strip().split(".")[0] for line in trace.splitlines()}
    assert "typer" in loaded
    assert not loaded & {"torch", "transformers", "pandas", "numpy", "matplotlib", "accelerate", "pydantic"}


def test_help_takes_a_third_of_importing_torch_at_most(tmp_path):
    def seconds(*arguments: str) -> float:
        start = time.perf_counter()
        assert python(*arguments, cwd=tmp_path).returncode == 0
        return time.perf_counter() - start

    pairs = [(seconds("-m", "cudt", "--help"), seconds("-c", "import torch")) for _ in range(3)]
    answer, torch_alone = map(min, zip(*pairs, strict=True))
    assert answer <= torch_alone / 3


# ---------------------------------------------------------------- the way from recipe to report


def test_the_way_from_recipe_to_report_works(tmp_path):
    train = ["train", "--recipe", "reviews-ut", *SMALL, "--objective"]
    done = [cudt(*train, objective, cwd=tmp_path) for objective in ("constrained", "erm")]
    found = sorted(tmp_path.glob("outputs/reviews-ut/*"))
    done.append(cudt("eval-ood", *(path.relative_to(tmp_path) for path in found), cwd=tmp_path))
    done.append(cudt("report", cwd=tmp_path))
    assert [one.returncode for one in done] == [0] * 4, "\n".join(one.stderr for one in done)
    trained, _, evaluated, reported = (one.stdout for one in done)
    assert "epoch 2/2  validation loss by layer" in trained
    assert f"next: cudt eval-ood outputs/reviews-ut/constrained-{tiny_recipe().identity()}" in trained
    assert evaluated.count("AUC") == 2
    assert "look at outputs/report/index.html" in reported
    for run in map(open_run, found):
        assert run.info().status == "finished"
        assert run.read_table("ood")["gamma"].unique().tolist() == [0, 0.5, 1]
    table = pd.read_csv(tmp_path / "outputs" / "report" / "table.csv")
    assert table["objective"].tolist() == ["constrained", "erm"]
    tables = [line for one in done for line in one.stdout.splitlines() if "outputs" not in line and "epoch" not in line]
    assert max(len(line) for line in tables) <= 80


def test_training_again_finds_the_run_finished_and_changes_nothing(call, trained_run):
    out = trained_run.path.parents[1]
    before = contents(out)
    code, output, error = call("train", "--recipe", "reviews-ut", *SMALL, "--out", out)
    assert (code, error) == (0, "")
    assert output.startswith(f"finished before: {trained_run.path}\n")
    assert contents(out) == before


@pytest.fixture
def copy(trained_run: Run, tmp_path: Path) -> Run:
    return Run(Path(shutil.copytree(trained_run.path, tmp_path / "copy")), trained_run.recipe)


@pytest.mark.parametrize("status", ["running", "failed", "interrupted"])
def test_an_unfinished_run_is_not_evaluated_nor_any_beside_it(status, call, copy, trained_run, tmp_path):
    shutil.copytree(trained_run.path, tmp_path / "whole")
    copy.update_info(RunInfo(status=status))
    before = contents(tmp_path)
    code, _, error = call("eval-ood", "whole", "copy")
    assert code == 2
    assert error.startswith(f"error: 'copy' is {status}, not finished; run `cudt train`")
    assert len(error.splitlines()) == 1
    assert contents(tmp_path) == before


def test_another_grid_joins_the_first(call, copy):
    assert call("eval-ood", "copy", "--device", "cpu")[0] == 0
    first = copy.read_table("ood")
    assert call("eval-ood", "copy", "--gammas", "0.5:2:0.75", "--device", "cpu")[0] == 0
    both = copy.read_table("ood")
    assert both["gamma"].unique().tolist() == [0, 0.5, 1, 1.25, 2]
    # The metric and the loss of each, with both ends of their intervals.
    assert len(both) == 5 * 6
    # A level that was evaluated again has the same value.
    assert both[both["gamma"].isin([0, 0.5, 1])].reset_index(drop=True).equals(first)


def test_another_kind_of_noise_joins_the_first(call, copy):
    arguments = ["--gammas", "1", "--device", "cpu", "--perturbation", "gaussian", "--perturbation", "uniform"]
    code, output, _ = call("eval-ood", "copy", *arguments)
    assert code == 0
    assert copy.read_table("ood")["perturbation"].unique().tolist() == ["gaussian", "uniform"]
    assert "uniform" in output


def test_a_run_at_work_is_not_evaluated(call, copy):
    with copy.locked():
        code, _, error = call("eval-ood", "copy", "--device", "cpu")
    assert (code, error) == (2, "error: copy: another process is at work on this run\n")


@pytest.mark.parametrize("folder", ["a [bold] b", "a[/b]"])
def test_a_folder_may_have_brackets_in_its_name(folder, call, trained_run, tmp_path):
    path = Path(folder) / "run"
    shutil.copytree(trained_run.path, tmp_path / path)
    code, output, _ = call("eval-ood", path, "--gammas", "0", "--device", "cpu")
    assert code == 0
    assert str(path / "ood.csv") in output
    code, output, _ = call("report", folder, "--out", f"{folder}/report")
    assert code == 0
    assert f"{folder}/report/index.html" in output


def test_the_report_names_what_it_leaves_out(call, copy, trained_run, tmp_path):
    shutil.copytree(trained_run.path, tmp_path / "whole")
    copy.update_info(RunInfo(status="failed", reason="the loss [layer] is not finite"))
    code, output, _ = call("report", tmp_path, "--out", "report")
    assert code == 0
    assert f"note: {copy.path}: failed (the loss [layer] is not finite)" in output
    assert f"{tmp_path / 'whole'}: not evaluated yet" in output
