"""Updates that do not fit into memory, on the CPU whose allocator is pretended to fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from cudt.runs.find import run_for
from cudt.training.splitting import Splitting, UpdateSplitError
from cudt.training.trainer import Trainer
from cudt.utils.errors import DataWarning, MachineFaultError
from tests.conftest import tiny_recipe, train_quietly

OUT_OF_MEMORY = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1000000000 bytes. Error code 12"
#: Both forms: in the log form, a split update needs two forward passes.
LINEAR, LOG = ("descent.alpha=0.3",), ("descent.form=log", "descent.resilience=slack", "descent.beta=1.0")
FILES = ("history.csv", "layers.csv", "checkpoints/best.safetensors", "checkpoints/last.safetensors")


def results(run: Any) -> dict[str, bytes]:
    return {name: (run.path / name).read_bytes() for name in FILES}


def room_for(patch: pytest.MonkeyPatch, n_examples: int) -> None:
    """Let the forward pass of more examples run out of memory."""
    whole = Trainer._loss_sums

    def limited(trainer: Trainer, batch: Any, *more: Any) -> Any:
        if len(batch["ids"]) > n_examples:
            raise RuntimeError(OUT_OF_MEMORY)
        return whole(trainer, batch, *more)

    patch.setattr(Trainer, "_loss_sums", limited)


@pytest.mark.parametrize("settings", [LINEAR, LOG], ids=["linear", "log"])
def test_an_update_that_is_split_is_that_of_more_micro_batches_bit_for_bit(settings, tmp_path, monkeypatch):
    expected = results(train_quietly(tiny_recipe(*settings, "training.accumulation=4"), tmp_path / "four"))
    room_for(monkeypatch, 8)
    recipe = tiny_recipe(*settings, "training.oom=split")
    with pytest.warns(
        DataWarning, match=r"update 1: out of memory; .* an update has 4 micro-batches of up to 8"
    ) as told:
        split = train_quietly(recipe, tmp_path / "split")
    assert results(split) == expected
    assert [str(one.message)[:8] for one in told] == ["update 1"] * 2
    assert split.path.name == run_for(tiny_recipe(*settings), tmp_path).path.name


def failing_backward(patch: pytest.MonkeyPatch, at: int) -> None:
    """Let memory run out after the gradients of some call are there."""
    whole, calls = Accelerator.backward, []

    def backward(accelerator: Accelerator, loss: Any, **more: Any) -> None:
        calls.append(1)
        whole(accelerator, loss, **more)
        if len(calls) == at:
            raise MemoryError

    patch.setattr(Accelerator, "backward", backward)


def splitting_before(patch: pytest.MonkeyPatch, update: int) -> None:
    """The literal twin: nothing of an update has happened when it is split."""
    guarded = Splitting.guarded

    def early(splitting: Splitting, back_propagate: Any, number: int) -> Any:
        if number == update and splitting.parts == splitting._recipe.training.accumulation:
            splitting.parts *= 2
            raise UpdateSplitError
        return guarded(splitting, back_propagate, number)

    patch.setattr(Splitting, "guarded", early)


def with_dropout(patch: pytest.MonkeyPatch) -> None:
    """Let every forward pass draw from torch's generator, as dropout does."""
    whole = Trainer._loss_sums
    patch.setattr(Trainer, "_loss_sums", lambda *given: whole(*given) * (0.5 + torch.rand(())))


def test_a_fault_in_the_middle_of_a_backward_pass_leaves_no_gradient_and_draws_no_mask_twice(tmp_path, monkeypatch):
    with_dropout(monkeypatch)
    recipe = tiny_recipe("training.oom=split", "training.accumulation=2")
    with pytest.MonkeyPatch.context() as patch:
        splitting_before(patch, 2)
        expected = results(train_quietly(recipe, tmp_path / "twin"))
    # After two micro-batches of the first update and one of the second.
    failing_backward(monkeypatch, 3)
    with pytest.warns(DataWarning, match="update 2: out of memory"):
        found = train_quietly(recipe, tmp_path / "split")
    assert results(found) == expected


def test_without_splitting_the_run_is_interrupted_with_advice_and_resumes(tmp_path, monkeypatch):
    expected = results(train_quietly(tiny_recipe(), tmp_path / "whole"))
    with monkeypatch.context() as patch:
        failing_backward(patch, 5)
        with pytest.raises(MachineFaultError) as raised:
            train_quietly(tiny_recipe(), tmp_path / "stopped")
    line = "update 5: out of memory on the host; set training.oom=split, which halves the micro-batches of 32 examples"
    assert line in str(raised.value)
    run = run_for(tiny_recipe(), tmp_path / "stopped")
    info = run.info()
    assert (info.status, str(info.reason)[: len(line)]) == ("interrupted", line)
    assert results(train_quietly(tiny_recipe("training.oom=split"), tmp_path / "stopped")) == expected
    assert run.info().reason is None


def test_an_example_that_does_not_fit_ends_the_run(tmp_path: Path, monkeypatch):
    room_for(monkeypatch, 0)
    recipe = tiny_recipe("training.oom=split", "training.batch_size=3")
    with pytest.warns(DataWarning, match="out of memory"), pytest.raises(MachineFaultError) as raised:
        train_quietly(recipe, tmp_path)
    assert "update 1: out of memory on the host (tried to allocate 1,000.0 MB); use a smaller model" in str(
        raised.value
    )


def test_validation_names_its_own_batch_size(tmp_path, monkeypatch):
    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("cudt.training.trainer.measure_batches", lambda *_: map(fail, [0]))
    with pytest.raises(MachineFaultError, match=r"validation: out of memory on the host; lower evaluation.batch_size"):
        train_quietly(tiny_recipe(), tmp_path)
    assert run_for(tiny_recipe(), tmp_path).info().status == "interrupted"
