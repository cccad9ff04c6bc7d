from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cudt import doctor
from cudt.cli import main as cli
from cudt.doctor import Check, Diagnosis, Scope
from cudt.doctor.probe import Probe
from tests.cli.conftest import CommandLine, environment

ROOT = Path(__file__).parents[2]


@pytest.fixture
def asked(monkeypatch) -> list[Scope]:
    """The scopes that checks were given; there is one check, and no process is started."""
    monkeypatch.setattr(Probe, "__init__", lambda self: None)
    return []


def pretend(monkeypatch: pytest.MonkeyPatch, asked: list[Scope], *found: Diagnosis) -> None:
    def run(scope: Scope) -> list[Diagnosis]:
        asked.append(scope)
        return list(found)

    monkeypatch.setattr(doctor, "checks", lambda: [Check("Planted", 1, run), Check("Nothing", 2, lambda scope: [])])


def test_what_is_in_order_is_listed_and_the_exit_code_is_0(call: CommandLine, asked, monkeypatch):
    pretend(monkeypatch, asked, Diagnosis("ok", "all of it"), Diagnosis("note", "not here", "get it"))
    assert call("doctor") == (
        0,
        "Planted\n  ok       all of it\n  note     not here\n           → get it\n\neverything is in order\n",
        "",
    )
    assert asked[0].folders == [Path("outputs")]


def test_a_problem_gives_exit_code_1_a_warning_does_not(call: CommandLine, asked, monkeypatch):
    pretend(monkeypatch, asked, Diagnosis("warning", "slow", "wait"))
    assert call("doctor")[0] == 0
    pretend(monkeypatch, asked, Diagnosis("warning", "slow", "wait"), Diagnosis("problem", "broken", "repair it"))
    code, printed, _ = call("doctor")
    assert code == 1
    assert "  problem  broken\n           → repair it\n" in printed
    assert printed.endswith("\n1 problem, 1 warning\n")


def test_fixes_are_done_only_if_asked_for_and_say_what_they_did(call: CommandLine, asked, monkeypatch):
    done: list[int] = []

    def repair() -> str:
        done.append(1)
        return "deleted it"

    broken = Diagnosis("problem", "broken", "delete it", repair)
    pretend(monkeypatch, asked, broken)
    assert call("doctor")[1].endswith("1 problem; `cudt doctor --fix` repairs 1 of these\n")
    assert done == []
    code, printed, _ = call("doctor", "--fix")
    assert (code, done) == (0, [1])
    assert printed == "Planted\n  fixed    broken\n           → deleted it\n\n1 fixed\n"


def test_a_fix_that_fails_leaves_a_problem_and_the_others_are_done(call: CommandLine, asked, monkeypatch):
    def fail() -> str:
        raise OSError("no permission")

    pretend(monkeypatch, asked, Diagnosis("problem", "a", "b", fail), Diagnosis("problem", "c", "d", lambda: "done"))
    code, printed, _ = call("doctor", "--fix")
    assert code == 1
    assert "→ could not be repaired (no permission); b\n" in printed
    assert "fixed    c" in printed


def test_a_check_that_raises_is_a_problem_and_the_next_goes_on(call: CommandLine, asked, monkeypatch):
    def fail(scope: Scope) -> list[Diagnosis]:
        raise ModuleNotFoundError("No module named 'pandas'")

    good = Check("Good", 2, lambda scope: [Diagnosis("ok", "fine")])
    monkeypatch.setattr(doctor, "checks", lambda: [Check("Bad", 1, fail), good])
    code, printed, _ = call("doctor")
    assert code == 1
    assert "could not be checked: ModuleNotFoundError: No module named 'pandas'" in printed
    assert "ok       fine" in printed


def test_a_folder_that_was_named_and_does_not_exist_is_an_error(call: CommandLine, asked, monkeypatch):
    pretend(monkeypatch, asked)
    code, printed, error = call("doctor", "no-such-folder")
    assert (code, printed) == (2, "")
    assert error == "error: 'no-such-folder' does not exist; give a folder with runs or a recipe file (.yaml)\n"
    assert call("doctor")[0] == 0


def test_recipe_files_folders_and_a_data_root_that_does_not_exist_are_examined(
    call: CommandLine, asked, monkeypatch, tmp_path
):
    pretend(monkeypatch, asked)
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").touch()
    Path("runs").mkdir()
    assert call("doctor", "mine.yaml", "runs", "--data-root", "gone")[0] == 0
    assert (asked[0].recipes, asked[0].folders, asked[0].data_root) == (["mine.yaml"], [Path("runs")], Path("gone"))


def test_names_that_a_terminal_cannot_show_do_not_break_the_list(call: CommandLine, asked, monkeypatch):
    pretend(monkeypatch, asked, Diagnosis("ok", "run \udcff\x1b[31m red\nnext"))
    code, printed, _ = call("doctor")
    assert code == 0
    assert "\x1b" not in printed
    assert "\nnext" not in printed


def test_every_check_runs_without_torch_and_says_that_it_is_missing(tmp_path):
    """In a process of its own, in which torch cannot be imported."""
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch_cpu.so: cannot open shared object file')")
    variables = {
        **environment(),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "CUDT_CACHE": str(tmp_path),
    }
    command = [sys.executable, "-m", "cudt", "doctor"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, "")
    assert "problem  torch cannot be imported: ImportError: libtorch_cpu.so: cannot open" in done.stdout
    assert "could not be checked" not in done.stdout
    assert "ready: reviews-ut, shapes-dust, smoke-text, smoke-video" in done.stdout
    assert not (tmp_path / "outputs").exists()


def fail_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let `cudt recipes` raise."""

    def names() -> list[str]:
        raise error

    monkeypatch.setattr("cudt.config.recipe.names", names)


def test_a_command_that_cannot_import_a_package_points_to_the_doctor(call: CommandLine, monkeypatch):
    fail_with(monkeypatch, ModuleNotFoundError("No module named 'torch'", name="torch"))
    assert call("recipes") == (
        2,
        "",
        "error: a package is missing or broken: No module named 'torch'; run `cudt doctor`\n",
    )


def test_a_mistake_inside_cudt_keeps_its_traceback(monkeypatch):
    fail_with(monkeypatch, ImportError("cannot import name 'x' from 'cudt.runs'", name="cudt.runs"))
    monkeypatch.setattr(sys, "argv", ["cudt", "recipes"])
    with pytest.raises(ImportError):
        cli.main()
