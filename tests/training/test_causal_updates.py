"""Updates of a causal model whose head is trained, and whose gradient is computed with the
losses."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from cudt.models.vocabulary import HeadGradient, TokenLogits
from tests.instructions import train, write_instructions, write_recipe
from tests.pretrained import tiny_llama

FEW = ("task.limit={train: 8, validation: 4}", "model.lora=null", "training.epochs=1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("instructions")
    write_instructions(folder)
    write_recipe(folder, tiny_llama(folder / "llama", tie_word_embeddings=False))
    return folder


def history(folder: Path, out: Path, settings: tuple[str, ...], objective: str) -> pd.DataFrame:
    return train(folder, out, *FEW, *settings, objective=objective).read_table("history")


@pytest.mark.parametrize(
    ("objective", "settings", "announces"),
    [
        ("constrained", ("descent.form=linear",), True),
        ("constrained", ("descent.form=linear", "training.accumulation=2"), True),
        ("constrained", ("descent.form=linear", "readout.tokens=3"), True),
        ("constrained", ("descent.form=linear", "model.gradient_checkpointing=true"), True),
        ("constrained", ("descent.form=log", "training.accumulation=2", "readout.tokens=3"), True),
        ("constrained", ("descent.form=log",), False),
        ("supervised", ("descent.form=linear",), True),
        ("erm", ("descent.form=log",), True),
    ],
)
def test_the_gradient_of_an_announced_head_is_that_of_logits_computed_again(
    folder, tmp_path, monkeypatch, objective, settings, announces
):
    shares: list[object] = []
    sums_of = HeadGradient.sums_of

    def watched(self, head):
        shares.append(head)
        return sums_of(self, head)

    monkeypatch.setattr(HeadGradient, "sums_of", watched)
    found = history(folder, tmp_path / "announced", settings, objective)
    assert bool(shares) == announces
    monkeypatch.setattr(TokenLogits, "adding_to", lambda self, gradient, row: self)
    expected = history(folder, tmp_path / "again", settings, objective)
    assert found["value"].tolist() == pytest.approx(expected["value"].tolist(), abs=2e-6)
