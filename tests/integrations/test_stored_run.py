"""Runs of cudt that `DescentTrainer` leaves behind, and cudt's commands on them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from cudt.config.schema import Noise
from cudt.models.own_head import layer_losses
from cudt.runs.find import open_run
from cudt.runs.run import Run
from cudt.utils.errors import UserError
from tests.cli.conftest import CommandLine, call  # noqa: F401  (a fixture)
from tests.integrations.trainers import NO_DROPOUT, SETTINGS, Rows, collate, examples, trainer_of
from tests.models.test_own_head import model_of

HEADS = {"sequence": "bert", "token": "bert", "causal": "llama", "image": "vit"}


def stored(folder: Path, head: str, **options: Any) -> tuple[Any, Run]:
    trainer = trainer_of(
        folder,
        head,
        HEADS[head],
        **{
            "eval_dataset": examples(head, 12, seed=1),
            "test_dataset": examples(head, 16, seed=2),
            "report_to_cudt": folder / "outputs",
            **options,
        },
    )
    trainer.train()
    return trainer, open_run(trainer.stored_run.run.path)


def lora(folder: Path) -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model_of("causal", "llama").save_pretrained(folder / "base")
    base = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    return get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=2, lora_dropout=0.0, target_modules="all-linear"))


@torch.no_grad()
def in_memory(trainer: Any, rows: Rows) -> list[float]:
    return layer_losses(trainer.model.eval(), collate([rows[index] for index in range(len(rows))])).tolist()


def test_losses(trainer: Any, run: Run, head: str) -> None:
    """What eval-ood reports of clean test data is what the model in memory has."""
    layers = run.read_table("layers")
    clean = layers[(layers["split"] == "test") & (layers["gamma"] == 0)]
    assert clean["loss"].tolist() == pytest.approx(in_memory(trainer, examples(head, 16, seed=2)), abs=1e-6)


test_losses.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("head", [*HEADS, "lora"])
def test_cudts_commands_work_on_the_run_also_if_it_is_moved(head, call, tmp_path, monkeypatch):  # noqa: F811
    options: dict[str, Any] = {}
    if head == "lora":
        head, model = "causal", lora(tmp_path)
        options["model_object"] = model
    trainers = {}
    for objective in ("constrained", "erm"):
        trainer, run = stored(tmp_path, head, objective=objective, **_given(options))
        trainers[objective] = trainer
        layers = run.read_table("layers")
        assert layers["loss"].tolist() == pytest.approx(in_memory(trainer, examples(head, 12, seed=1)), abs=1e-6)
    shutil.move(tmp_path / "outputs", tmp_path / "moved")
    paths = sorted((tmp_path / "moved").glob("*/*-*"))
    code, _, error = call("eval-ood", *map(str, paths), "--gammas", "0,0.5", "--device", "cpu")
    assert code == 0, error
    for path in paths:
        run = open_run(path)
        test_losses(trainers[run.recipe.settings.objective], run, head)
    assert call("compare", *map(str, paths))[0] == 0
    assert call("runs", "moved")[0] == 0
    code, _, error = call("report", "moved", "--out", "page")
    assert code == 0, error
    assert (tmp_path / "page" / "index.html").is_file() or list((tmp_path / "page").glob("*.html"))
    code, output, error = call("doctor", "moved")
    assert "damaged" not in output + error


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return options
