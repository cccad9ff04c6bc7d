"""The programs in examples/integrations: they run as they are, and do what their pages say."""

from __future__ import annotations

import difflib
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

# Imported once for all processes: it takes longer than a tiny training.
import transformers.models.bert.modeling_bert  # noqa: F401

PROGRAMS = Path(__file__).parent.parent.parent / "examples" / "integrations"
EPOCH = re.compile(
    r"epoch (\d+): layer losses tensor\(\[(.*?)\]\), multipliers tensor\(\[(.*?)\]\)"
)


def run(name: str) -> dict[str, Any]:
    """The variables of a program after its end."""
    return runpy.run_path(str(PROGRAMS / name))


def test_the_pytorch_program_prints_losses_and_multipliers_of_all_layers(capsys):
    after = run("pytorch_loop.py")
    printed = EPOCH.findall(capsys.readouterr().out)
    assert [int(epoch) for epoch, _, _ in printed] == [*range(1, 11)]
    assert all(
        len(losses.split(",")) == len(multipliers.split(",")) == 4
        for _, losses, multipliers in printed
    )
    highest = max(float(value) for _, _, multipliers in printed for value in multipliers.split(","))
    assert highest > 0.1
    last = [float(value) for value in printed[-1][1].split(",")]
    assert last == pytest.approx(after["f"].tolist(), abs=1e-4)
    # Every layer lowers the loss of the one before; the first batches do not.
    assert last[0] > last[-1]


def test_the_constraints_are_five_lines_more():
    """All lines but blank ones, docstrings and prints."""
    plain, constrained = (
        [
            line
            for line in (PROGRAMS / name).read_text().splitlines()
            if line and not re.match(r'\s*(print\(|""")', line)
        ]
        for name in ("plain_loop.py", "pytorch_loop.py")
    )
    changes = [line for line in difflib.ndiff(plain, constrained) if line[0] in "+-"]
    assert [line[0] for line in changes].count("+") == 6
    assert [line[0] for line in changes].count("-") == 1
    assert len(constrained) - len(plain) == 5
    assert 'resilience="slack"' in "".join(changes)


def test_the_plain_program_runs(capsys):
    run("plain_loop.py")
    assert len(re.findall(r"epoch \d+: loss \d\.\d{3}\n", capsys.readouterr().out)) == 10


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_lightning_program_prints_a_verdict(caplog, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with caplog.at_level("INFO"):
        after = run("lightning_module.py")
    verdicts = after["constraints"].verdicts
    printed = capsys.readouterr().out
    assert len(verdicts) == 4
    assert all(
        re.search(rf"{one.layer} .* {one.loss:.4g} .* {one.verdict} ", printed) for one in verdicts
    )
    assert re.search(r"multipliers tensor\(\[.*, .*, .*, .*\]\)", printed)
    assert "standard errors over 16 batches" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_the_trainer_program_prints_a_verdict(capsys):
    after = run("descent_trainer.py")
    printed = capsys.readouterr().out
    verdicts = after["trainer"].verdicts
    assert len(verdicts) == 4
    assert all(
        re.search(rf"{one.layer} .* {one.loss:.4g} .* {one.verdict} ", printed) for one in verdicts
    )
    # It learned something, and so did the layers on the way.
    assert verdicts[-1].loss < 0.6 < verdicts[0].loss
