from __future__ import annotations

import subprocess
import sys

import pytest

from cudt.cli import completion
from tests.cli.conftest import environment, python


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("outputs/reviews-ut/erm-1", "outputs/reviews-ut/erm-2", "outputs/other/constrained-3", ".venv/x"):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "run.json").touch()
    (tmp_path / "mine.yaml").touch()
    return tmp_path


def test_recipes_are_completed_by_name_and_by_file():
    assert completion.recipes("smoke-t") == ["smoke-text"]
    assert completion.recipes("mi") == ["mine.yaml"]
    assert completion.searches("smoke-alp") == ["smoke-alpha"]


def test_plugins_are_completed():
    assert completion.objectives("") == ["constrained", "erm", "supervised"]
    assert completion.noises("g") == ["gaussian"]


def test_run_folders_are_completed_but_not_hidden_ones():
    everything = ["outputs/other/constrained-3", "outputs/reviews-ut/erm-1", "outputs/reviews-ut/erm-2"]
    assert completion.run_folders("") == everything
    assert completion.run_folders("outputs/rev") == everything[1:]
    assert completion.run_folders("outputs/reviews-ut/erm-2") == everything[2:]
    assert completion.run_folders("gone") == []


WORDS = {
    "cudt train --recipe smoke-t": "smoke-text",
    "cudt train --recipe smoke-text --objective con": "constrained",
    "cudt experiment smoke-t": "smoke-text",
    "cudt recipes show smoke-t": "smoke-text",
    "cudt eval-ood outputs/oth": "outputs/other/constrained-3",
    "cudt eval-ood outputs/other/constrained-3 --perturbation uni": "uniform",
}


@pytest.mark.parametrize(("typed", "completed"), WORDS.items(), ids=WORDS)
def test_the_shell_is_given_completions(typed, completed, folder):
    words = {"_CUDT_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['cudt']; from cudt.cli.main import main; main()"],
        env={**environment(), **words, "CUDT_DATA_ROOT": "gone"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == [completed], done.stderr


def test_completing_imports_nothing_heavy(folder):
    code = (
        "import sys; from cudt.cli import completion as c; c.recipes(''); c.searches(''); c.objectives('');"
        "c.noises(''); c.run_folders(''); "
        "print(sorted({'torch', 'optuna', 'transformers', 'matplotlib'} & {*sys.modules}))"
    )
    assert python("-c", code, cwd=folder).stdout == "[]\n"
