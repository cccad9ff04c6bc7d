"""Names, texts and file names that would act on a terminal, a shell, a page or a figure."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cudt.cli import main as cli
from cudt.cli.options import make_console
from cudt.config import recipe as recipes
from cudt.config import yaml
from cudt.sweep import definition
from cudt.sweep.worker import SweepOptions
from cudt.utils.errors import UserError
from cudt.utils.workers import Workers

NAMES = ["new\nline\x1b[31m", "-rf", "sweeps", "=cmd|calc", "../up", "", "\ud800", "x" * 101]
ESCAPE = "\x1b[31m"


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:20])
def test_a_name_that_is_not_allowed_is_refused_in_one_printable_line(name, tmp_path):
    with pytest.raises(UserError, match=r"^--name: ") as error:
        recipes.load("reviews-ut", name=name)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 300
    file = tmp_path / "own.yaml"
    file.write_text(yaml.dump({"base": "reviews-ut", "name": name}))
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
        (tmp_path / "own.yaml").write_text(yaml.dump({**values, **change}))
        with pytest.raises(UserError, match=r"name"):
            definition.load(str(tmp_path / "own.yaml"))


# ---------------------------------------------------------------- sizes and long values


@pytest.mark.parametrize(
    "key", ["task.name", "model.layers", "evaluation.gammas", "objective", "x", "descent.alpha"]
)
def test_values_of_a_hundred_kilobytes_are_shortened(key):
    with pytest.raises(UserError) as error:
        recipes.load("reviews-ut", [f"{key}={'y' * 100_000}"])
    assert len(str(error.value)) < 600


def test_a_thousand_errors_are_counted_and_not_all_listed(tmp_path):
    (tmp_path / "own.yaml").write_text(
        "base: reviews-ut\n" + "".join(f"key{i}: 1\n" for i in range(90))
    )
    with pytest.raises(UserError, match=r"^own.yaml: 90 errors\n(.*\n){20}  … and 70 more$"):
        recipes.load(str(tmp_path / "own.yaml"))


# ---------------------------------------------------------------- the terminal and the shell


def test_codes_of_a_terminal_are_never_printed(capsys):
    make_console().print(f"a{ESCAPE} [bold]b[/bold]\nc\r\x07")
    make_console(stderr=True).print(f"error: {ESCAPE}a\nfake: b\n  listed [red]c\x9b")
    printed = capsys.readouterr()
    assert printed.out == "a\\x1b[31m [bold]b[/bold]\nc\\r\\x07\n"
    assert printed.err == "error: \\x1b[31ma\nfake: b\n  listed [red]c\\x9b\n"


@pytest.mark.parametrize("words", [["--seed", "²"], ["--seed", "9" * 5000], ["--set", "a=\udcff"]])
def test_options_that_no_file_can_record_are_refused(words, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["cudt", "train", "--recipe", "reviews-ut", *words])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.strip().isprintable()


# ---------------------------------------------------------------- passwords


def sleep(job: tuple[str, SweepOptions]) -> int:
    time.sleep(60)
    return 0


def test_no_process_list_shows_the_password_of_workers(tmp_path):
    job = ("study", SweepOptions(tmp_path, storage="postgresql://me:swordfish@db/trials"))
    with Workers([{}], tmp_path, sleep, job) as workers:
        children = [one.pid for one in workers._running.values()]
        lines = [
            Path(f"/proc/{pid}/cmdline").read_bytes() for pid in [*children, os.getpid()] if pid
        ]
    assert len(lines) > 1
    assert not any(b"swordfish" in line for line in lines)
    assert not any(
        b"swordfish" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )


@pytest.mark.parametrize(
    "url", ["me:swordfish@127.0.0.1:1/db", "127.0.0.1:1/db?password=swordfish"]
)
def test_a_password_is_never_printed(url, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["cudt", "sweep", "--join", "--storage", f"postgresql://{url}"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code != 0
    printed = capsys.readouterr()
    assert "swordfish" not in printed.out + printed.err
