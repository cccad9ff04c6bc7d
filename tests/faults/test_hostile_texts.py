"""Names, texts and file names that would act on a terminal, a shell, a spreadsheet, a page or a figure."""

from __future__ import annotations

import csv
import io
import multiprocessing
import os
import re
import shutil
import time
import warnings
from pathlib import Path

import pytest

from cudt import report
from cudt.cli import main as cli
from cudt.cli.terminal import make_console, make_error_console
from cudt.config import recipe as recipes
from cudt.config import strict_yaml
from cudt.report.collect import collect
from cudt.runs.run import Run
from cudt.sweep import definition
from cudt.sweep.arm_worker import WorkerJob
from cudt.sweep.run_sweep import SweepOptions, resume_command
from cudt.utils.errors import UserError
from cudt.utils.worker_processes import Processes

#: Row 11 of the issue, and relatives.
NAMES = [
    *(
        "new\nline\x1b[31m",
        "-rf",
        "sweeps",
        "report",
        "report-x",
        "Sweeps",
        "reproduce-smoke",
        "=cmd|calc",
        "../up",
        "a/b",
    ),
    *(
        "",
        ".",
        "..",
        ".hidden",
        " a",
        "a ",
        "a\x00b",
        "\ud800",
        "x" * 101,
        "é" * 51,
        "a:b",
        "a;b",
        "$(a)",
        "`a`",
        "a\u202eb",
    ),
]
OLD_NAME = "$\\nope$ <b>x</b> </script><script>alert(1)</script> {{7*7}} =1+1"
ESCAPE = "\x1b[31m"


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:20])
def test_a_name_that_is_not_allowed_is_refused_in_one_printable_line(name, tmp_path):
    with pytest.raises(UserError, match=r"^--name: ") as error:
        recipes.load("reviews-ut", name=name)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 300
    file = tmp_path / "own.yaml"
    file.write_text(strict_yaml.dump({"base": "reviews-ut", "name": name}))
    with pytest.raises(UserError):
        recipes.load(str(file))


@pytest.mark.parametrize("name", ["imdb-minilm", "my recipe", "größe_2.1+x", "x" * 100, "0"])
def test_other_names_are_allowed(name):
    assert recipes.load("reviews-ut", name=name).name == name


@pytest.mark.parametrize("name", ["-rf", "new\nline", "a/b", "=x"])
def test_names_of_searches_and_arms_are_checked_too(name, tmp_path):
    values = {"score": {"measure": "metric", "direction": "maximize"}, "recipe": "reviews-ut"}
    arm = {"sampler": "seeds", "budget": 1}
    for change in ({"name": name, "arms": {"erm": arm}}, {"arms": {name: arm}}):
        (tmp_path / "own.yaml").write_text(strict_yaml.dump({**values, **change}))
        with pytest.raises(UserError, match=r"name"):
            definition.load(str(tmp_path / "own.yaml"))


# ---------------------------------------------------------------- sizes and long values


@pytest.mark.parametrize("key", ["task.name", "model.layers", "evaluation.gammas", "objective", "x", "descent.alpha"])
def test_values_of_a_hundred_kilobytes_are_shortened(key):
    with pytest.raises(UserError) as error:
        recipes.load("reviews-ut", [f"{key}={'y' * 100_000}"])
    assert len(str(error.value)) < 600


def test_a_thousand_errors_are_counted_and_not_all_listed(tmp_path):
    (tmp_path / "own.yaml").write_text("base: reviews-ut\n" + "".join(f"key{i}: 1\n" for i in range(90)))
    with pytest.raises(UserError, match=r"^own.yaml: 90 errors\n(.*\n){20}  … and 70 more$"):
        recipes.load(str(tmp_path / "own.yaml"))


# ---------------------------------------------------------------- the terminal and the shell


def test_codes_of_a_terminal_are_never_printed(capsys):
    make_console().print(f"a{ESCAPE} [bold]b[/bold]\nc\r\x07")
    make_error_console().print(f"error: {ESCAPE}a\nfake: b\n  listed [red]c\x9b")
    printed = capsys.readouterr()
    assert printed.out == "a\\x1b[31m [bold]b[/bold]\nc\\r\\x07\n"
    assert printed.err == "error: \\x1b[31ma\nfake: b\n  listed [red]c\\x9b\n"


def test_an_error_about_a_strange_file_is_one_printable_line(tmp_path, monkeypatch, capsys):
    name = f"{tmp_path}/no{ESCAPE}such\nerror: fake"
    monkeypatch.setattr("sys.argv", ["cudt", "runs", name])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert printed.strip().isprintable()


@pytest.mark.parametrize(
    "words", [["--out", "o\udcff"], ["--seed", "²"], ["--seed", "9" * 5000], ["--set", "a=\udcff"]]
)
def test_options_that_no_file_can_record_are_refused(words, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["cudt", "train", "--recipe", "reviews-ut", *words])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.strip().isprintable()


# ---------------------------------------------------------------- runs with strange names


@pytest.fixture(scope="module")
def old_run(trained_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a name and a text that this version would refuse, in a folder that a shell would take apart."""
    folder = tmp_path_factory.mktemp("old") / "a b$(c)\n=d" / trained_run.path.name
    shutil.copytree(trained_run.path, folder)
    values = {**strict_yaml.parse_mapping((folder / "recipe.yaml").read_text(), "x"), "name": OLD_NAME}
    (folder / "recipe.yaml").write_text(strict_yaml.dump({**values, "expect": ESCAPE}))
    (folder / "checksums.json").unlink(missing_ok=True)
    return folder


def test_a_report_on_an_old_run_with_any_name_shows_it_as_text(old_run, tmp_path):
    made = report.write([old_run.parent], tmp_path)
    page = made.page.read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<b>x</b>" not in page
    assert "alert(1)" in page
    assert (tmp_path / "table.csv").is_file()


def test_a_folder_whose_name_is_no_text_is_left_out_of_a_report(old_run, tmp_path):
    shutil.copytree(old_run, tmp_path / "good" / old_run.name)
    shutil.copytree(old_run, tmp_path / "bad\udcff" / old_run.name)
    found = collect([tmp_path])
    assert [read.run.path.parent.name for read in found.runs] == ["good"]
    assert any("the folder's name is not valid UTF-8; rename it" in warning for warning in found.warnings)


def test_runs_are_listed_without_line_breaks_and_as_csv_without_formulas(old_run, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["cudt", "runs", str(old_run.parent)])
    with pytest.raises(SystemExit):
        cli.main()
    assert "1 run" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["cudt", "runs", str(old_run.parent), "--csv"])
    with pytest.raises(SystemExit):
        cli.main()
    (row,) = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert row["recipe"] == OLD_NAME
    assert not any(re.match(r"[=+@\t\r]", cell) for cell in row.values())


# ---------------------------------------------------------------- passwords


def sleep(job: WorkerJob) -> int:
    time.sleep(60)
    return 0


def test_no_process_list_shows_the_password_of_workers(tmp_path):
    job = WorkerJob("postgresql://me:swordfish@db/trials", "study", tmp_path, "cpu", None, "x:y")
    with Processes([{}], tmp_path, f"{__name__}:sleep", job) as workers:
        children = [child.pid for child in multiprocessing.active_children()]
        lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in [*children, os.getpid()] if pid]
        for child in multiprocessing.active_children():
            child.kill()
        list(workers.wait(5.0))
    assert len(lines) > 1
    assert not any(b"swordfish" in line for line in lines)
    assert not any(b"swordfish" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "url", ["postgresql://me:swordfish@127.0.0.1:1/db", "postgresql://127.0.0.1:1/db?password=swordfish"]
)
@pytest.mark.parametrize("is_typed", [True, False])
def test_a_password_on_the_command_line_gets_a_warning_and_is_never_printed(url, is_typed, monkeypatch, capsys):
    monkeypatch.setenv("CUDT_STORAGE", url)
    words = ["--storage", url] if is_typed else []
    monkeypatch.setattr("sys.argv", ["cudt", "sweep", "--join", *words])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.raises(SystemExit) as stopped:
            cli.main()
    assert stopped.value.code != 0
    printed = capsys.readouterr()
    assert "swordfish" not in printed.out + printed.err
    assert ("can read a password on the command line" in printed.err) == is_typed


def test_the_resume_command_of_a_sweep_has_its_storage_without_the_password(tmp_path):
    options = SweepOptions(tmp_path, "cpu", storage="postgresql://me:swordfish@db/trials")
    assert "--storage postgresql://me@db/trials" in resume_command(tmp_path, options)
