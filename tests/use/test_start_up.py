"""What commands import before they have something to compute: counted, not timed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "pandas", "altair", "accelerate", "optuna", "datasets")
#: Prints the exit code of a command, and the heavy packages that it has imported.
CALL = f"""
import json, sys
from cudt.cli.main import main
sys.argv = ["cudt", *sys.argv[1:]]
try:
    main()
except SystemExit as stop:
    code = stop.code or 0
print(json.dumps([code, [name for name in {HEAVY!r} if name in sys.modules]]))
"""
TYPO = ["--set", "training.epoch=3"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["recipes"], 0),
        (["recipes", "show", "imdb-minilm"], 0),
        (["train", "--recipe", "imdb-minilm", *TYPO], 2),
        (["train", "--recipe", "ucsd-dust", "--objective", "emr"], 2),
        (["sweep", "--search", "alhpa"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_help_and_refusals_import_nothing_heavy(arguments, code, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CALL, *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [code, []], done.stderr


def test_import_cudt_imports_nothing_heavy(tmp_path):
    code = f"import cudt, sys; cudt.train; print([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n"
