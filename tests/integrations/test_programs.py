"""The programs in examples/integrations: they run as they are, and do what their pages say."""

from __future__ import annotations

import difflib
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

# Imported once for all processes: it takes longer than a tiny training.
import transformers.models.bert.modeling_bert  # noqa: F401
from accelerate.state import AcceleratorState, GradientState
from torch import nn

import cudt
import cudt.models.own_head
from tests.processes import together

PROGRAMS = Path(__file__).parent.parent.parent / "examples" / "integrations"
EPOCH = re.compile(r"epoch (\d+): layer losses tensor\(\[(.*?)\]\), multipliers tensor\(\[(.*?)\]\)")


def run(name: str) -> dict[str, Any]:
    """The variables of a program after its end."""
    return runpy.run_path(str(PROGRAMS / name))


@pytest.fixture(autouse=True)
def accelerate_forgets() -> Iterator[None]:
    """Accelerate keeps the settings of the first Accelerator of a process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def state(after: dict[str, Any]) -> list[list[float]]:
    """Weights, λ and u after a program; biases of keys change nothing in a softmax, so Adam steps them by rounding."""
    named = after["model"].named_parameters()
    weights = nn.utils.parameters_to_vector(weight for name, weight in named if not name.endswith("key.bias"))
    return [one.tolist() for one in (weights, after["descent"].multiplier_values, after["descent"].slack)]


@pytest.mark.forks
def test_two_processes_with_accelerate_give_the_numbers_of_one(capfd):
    def work() -> tuple[int, list[list[float]]]:
        torch.set_num_threads(1)
        after = run("accelerate_loop.py")
        return after["accelerator"].num_processes, state(after)

    (alone,) = together(1, work)
    first, second = together(2, work)
    assert (alone[0], first[0]) == (1, 2)
    assert first == second
    for found, expected in zip(first[1], alone[1], strict=True):
        assert found == pytest.approx(expected, abs=1e-4)
    printed = EPOCH.findall(capfd.readouterr().out)
    # Two processes print once.
    assert [epoch for epoch, _, _ in printed] == ["1", "2", "3", "4", "5"] * 2


def test_accelerates_accumulation_gives_the_steps_of_a_plain_loop():
    found = run("accelerate_loop.py")
    torch.manual_seed(0)
    model = type(found["accelerator"].unwrap_model(found["model"]))(found["config"])
    descent = cudt.LayerwiseDescent(n_layers=4, alpha=0.1, reference=0.69, resilience="slack", beta=1.0)
    optimizer = torch.optim.AdamW([{"params": model.parameters()}], lr=2e-3)
    descent.add_slack_to(optimizer)
    for start in [*range(0, 256, 32)] * 5:
        batch = {"input_ids": found["tokens"][start : start + 32], "labels": found["labels"][start : start + 32]}
        f = cudt.layer_losses(model, batch)
        optimizer.zero_grad()
        descent.lagrangian(f).backward()
        descent.dual_step(f)
        optimizer.step()
    for mine, its in zip(state(found), state({"model": model, "descent": descent}), strict=True):
        assert mine == pytest.approx(its, abs=1e-4)
    assert descent.multiplier_values.max() > 0.01


def test_the_pytorch_program_prints_losses_and_multipliers_of_all_layers(capsys):
    after = run("pytorch_loop.py")
    printed = EPOCH.findall(capsys.readouterr().out)
    assert [int(epoch) for epoch, _, _ in printed] == [*range(1, 11)]
    assert all(len(losses.split(",")) == len(multipliers.split(",")) == 4 for _, losses, multipliers in printed)
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
    assert all(re.search(rf"{one.layer} .* {one.loss:.4g} .* {one.verdict} ", printed) for one in verdicts)
    assert re.search(r"multipliers tensor\(\[.*, .*, .*, .*\]\)", printed)
    assert "standard errors over 16 batches" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_the_trainer_program_prints_a_verdict(capsys):
    after = run("descent_trainer.py")
    printed = capsys.readouterr().out
    verdicts = after["trainer"].verdicts
    assert len(verdicts) == 4
    assert all(re.search(rf"{one.layer} .* {one.loss:.4g} .* {one.verdict} ", printed) for one in verdicts)
    # It learned something, and so did the layers on the way.
    assert verdicts[-1].loss < 0.6 < verdicts[0].loss


def test_the_program_of_trl_prints_a_verdict(capsys, tmp_path, monkeypatch):
    pytest.importorskip("trl", reason="TRL is not installed; it needs Python 3.11")
    monkeypatch.chdir(tmp_path)
    after = run("sft_trainer.py")
    verdicts = after["trainer"].verdicts
    assert [one.layer for one in verdicts] == [1, 2, 3, 4]
    assert verdicts[-1].loss < 0.5 < verdicts[0].loss
    assert "every layer lowers the loss" in capsys.readouterr().out


@pytest.mark.slow
def test_the_program_of_stored_runs_evaluates_both_under_noise(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("stored_run.py")
    printed = re.findall(
        r"(erm|constrained)-\w+: accuracy by noise level \{0.0: (\S+), 0.5: (\S+), 1.0: (\S+)\}",
        capsys.readouterr().out,
    )
    assert [objective for objective, *_ in printed] == ["constrained", "erm"]
    for _, *accuracies in printed:
        clean, _, noisy = map(float, accuracies)
        assert 0.75 < clean <= 1
        assert noisy < clean
