"""Runs of cudt that `DescentTrainer` leaves behind, and cudt's commands on them."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from cudt.config.schema import Noise
from cudt.integrations.transformers import DescentTrainer
from cudt.models.own_head import layer_losses
from cudt.runs.find import open_run
from cudt.runs.run import Run
from cudt.utils.errors import UserError
from tests.cli.conftest import CommandLine
from tests.cli.conftest import call as call
from tests.integrations.trainers import NO_DROPOUT, SETTINGS, Rows, arguments, by_layer, collate, examples
from tests.models.test_own_head import model_of
from tests.pretrained import tiny_tokenizer
from tests.processes import together

#: Heads and families.
MODELS = {"sequence": "bert", "token": "bert", "causal": "llama", "image": "vit"}


def lora(folder: Path) -> Any:
    model_of("causal", "llama").save_pretrained(folder / "base")
    base = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    torch.manual_seed(0)
    return get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=2, lora_dropout=0.0, target_modules="all-linear"))


def trainer_for(folder: Path, name: str, args: dict[str, Any] | None = None, **options: Any) -> DescentTrainer:
    """A trainer of four updates that leaves a run in `outputs`."""
    head = "causal" if name == "lora" else name
    family = MODELS[head]
    model = lora(folder) if name == "lora" else model_of(head, family, **NO_DROPOUT.get(family, {}))
    return DescentTrainer(
        **{
            "model": model,
            "args": arguments(folder / "trainer", **{"run_name": name, **(args or {})}),
            "train_dataset": examples(head),
            "eval_dataset": examples(head, 12, seed=1),
            "test_dataset": examples(head, 16, seed=2),
            "data_collator": collate,
            "descent": SETTINGS,
            "report_to_cudt": folder / "outputs",
            **options,
        }
    )


def trained(folder: Path, name: str, **options: Any) -> tuple[DescentTrainer, Run]:
    trainer = trainer_for(folder, name, **options)
    trainer.train()
    assert trainer.stored_run is not None
    return trainer, open_run(trainer.stored_run.run.path)


@torch.no_grad()
def in_memory(trainer: DescentTrainer, rows: Rows) -> Any:
    """The layer losses of the trainer's model, computed without cudt's run."""
    batch = collate([rows[index] for index in range(len(rows))])
    return pytest.approx(layer_losses(trainer.model.eval(), batch).tolist(), abs=1e-6)


#: The others take the same path through the code with other data.
QUICK = ("sequence", "lora")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in (*MODELS, "lora")]
)
def test_cudts_commands_work_on_a_run_that_was_moved(name, call: CommandLine, tmp_path):
    head = "causal" if name == "lora" else name
    trainers = {}
    for objective in ("constrained", "erm"):
        trainers[objective], run = trained(tmp_path, name, objective=objective)
        assert run.read_table("layers")["loss"].tolist() == in_memory(trainers[objective], examples(head, 12, seed=1))
    shutil.move(tmp_path / "outputs", tmp_path / "moved")
    paths = sorted((tmp_path / "moved" / name).iterdir())
    code, _, error = call("eval-ood", *paths, "--gammas", "0,0.5", "--device", "cpu")
    assert code == 0, error
    for run in map(open_run, paths):
        layers = run.read_table("layers")
        clean = layers[(layers["split"] == "test") & (layers["gamma"] == 0)]["loss"].tolist()
        assert clean == in_memory(trainers[run.recipe.settings.objective], examples(head, 16, seed=2))
    for words in (("compare", *paths), ("runs", "moved")):
        code, output, error = call(*words)
        assert code == 0, (words, output, error)
    if name == "sequence":
        assert call("report", "moved", "--out", "page")[0] == 0
        assert (tmp_path / "page" / "index.html").is_file()


def test_the_run_says_what_was_trained(tmp_path):
    trainer, run = trained(
        tmp_path,
        "sequence",
        noise=Noise(gamma_train=0.3),
        args={"optim": "adafactor", "lr_scheduler_type": "cosine", "gradient_accumulation_steps": 2, "seed": 7},
    )
    info, settings = run.finished_info(), run.recipe.settings
    assert (info.seed, info.gamma_train, info.layers, info.feasible) == (7, 0.3, 3, False)
    assert trainer.problem is not None
    assert info.reference == trainer.problem.descent.reference
    assert info.sigma_x.training == trainer.noise.sigma_x
    assert info.sigma_x.evaluation != info.sigma_x.training
    assert info.multipliers is not None
    assert info.multipliers.last == trainer.problem.descent.multiplier_values.tolist()
    assert (settings.training.batch_size, settings.training.accumulation) == (16, 2)
    assert settings.training.schedule == "cosine"
    assert settings.descent == SETTINGS
    model: Any = settings.model
    assert model.trained_by == "DescentTrainer of BertForSequenceClassification, max_steps=4, optim=adafactor"
    assert model.trained_from is None
    history = run.read_table("history")
    for what in ("loss", "multiplier", "violation"):
        rows = history[(history["split"] == "train") & (history["name"] == what)]
        logged = rows.pivot_table(index="step", columns="layer", values="value").to_numpy()
        assert logged == pytest.approx(by_layer(trainer, what).double().numpy())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"num_train_epochs": 0.5, "max_steps": -1}, "num_train_epochs=0.5"),
        ({"optim": "adamw_anyprecision"}, "optim=adamw_anyprecision"),
        ({"train_sampling_strategy": "sequential"}, "train_sampling_strategy=sequential"),
        ({"dataloader_drop_last": True}, "dataloader_drop_last=True"),
    ],
)
def test_what_a_recipe_cannot_say_makes_another_run(args, said, tmp_path):
    plain, other = trainer_for(tmp_path, "sequence").stored_run, trainer_for(tmp_path, "sequence", args).stored_run
    assert plain is not None
    assert other is not None
    model: Any = other.run.recipe.settings.model
    assert said in model.trained_by
    assert other.run.path != plain.run.path


def test_an_adapter_names_its_base_model(tmp_path):
    _, run = trained(tmp_path, "lora")
    model: Any = run.recipe.settings.model
    assert model.trained_by.startswith("DescentTrainer of LlamaForCausalLM, max_steps=4, peft=lora, r=2, lora_alpha=8")
    assert model.trained_from == str(tmp_path / "base")
    assert AutoPeftModelForCausalLM.from_pretrained(run.path / "model").config.num_hidden_layers == 3
    assert f"base_model: {tmp_path / 'base'}" in (run.path / "model" / "README.md").read_text()


def test_the_saved_model_is_the_trained_one(tmp_path):
    trainer, run = trained(tmp_path, "sequence")
    loaded = type(trainer.model).from_pretrained(run.path / "model")
    for (name, weight), other in zip(trainer.model.named_parameters(), loaded.parameters(), strict=True):
        assert torch.equal(weight, other), name
    assert not (run.path / "model" / "training_args.bin").exists()


def test_cudt_train_keeps_the_run_and_does_not_train_it_anywhere_else(call: CommandLine, tmp_path):
    _, run = trained(tmp_path, "sequence")
    recipe = run.path / "recipe.yaml"
    before = run.weights_file("last").read_bytes()
    assert call("train", "--recipe", recipe, "--out", "outputs", "--device", "cpu")[0] == 0
    assert run.weights_file("last").read_bytes() == before
    code, _, error = call("train", "--recipe", recipe, "--out", "other", "--data-root", run.path, "--device", "cpu")
    assert code == 2
    assert "model.trained_by: this run was trained by DescentTrainer" in error
    assert error.count("\n") == 1


def test_a_finished_run_is_not_overwritten(tmp_path):
    trained(tmp_path, "sequence")
    with pytest.raises(UserError, match="is a finished run of the same settings; set run_name or seed"):
        trainer_for(tmp_path, "sequence")


def test_a_training_that_fails_says_so_and_can_be_done_again(tmp_path, monkeypatch):
    trainer = trainer_for(tmp_path, "sequence")
    monkeypatch.setattr(trainer, "compute_loss", _broken)
    with pytest.raises(RuntimeError):
        trainer.train()
    assert trainer.stored_run is not None
    info = trainer.stored_run.run.info()
    assert (info.status, info.reason) == ("failed", "RuntimeError: broken")
    _, run = trained(tmp_path, "sequence")
    assert run.info().status == "finished"
    assert run.info().reason is None


def _broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("broken")


def test_a_run_without_test_data_cannot_be_tested(call: CommandLine, tmp_path):
    _, run = trained(tmp_path, "sequence", test_dataset=None)
    code, _, error = call("eval-ood", run.path, "--gammas", "0", "--device", "cpu")
    assert code == 2
    assert "test.parquet: does not exist, so the run cannot be tested; give its trainer a test_dataset" in error


class Endless(torch.utils.data.IterableDataset[Any]):
    """Examples whose number is not known."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def test_what_cannot_be_a_run_is_refused_before_training(tmp_path):
    rows = examples("sequence")
    left = [{**rows[index], "labels": 0.5} for index in range(8)]
    refused: dict[str, dict[str, Any]] = {
        "have no length": {"train_dataset": Endless(), "args": {"max_steps": 2}},
        "needs validation data": {"eval_dataset": None},
        "several data sets": {"eval_dataset": {"a": rows, "b": rows}},
        "label_smoothing_factor": {"args": {"label_smoothing_factor": 0.1}},
        "none of the classifiers": {"model": model_of("masked", "bert")},
        "regression has no classes": {"model": model_of("sequence", "bert", problem_type="regression")},
        "auto_find_batch_size": {"args": {"auto_find_batch_size": True}},
        "run_name: expected a name": {"args": {"run_name": "../up"}},
    }
    for message, options in refused.items():
        args = {"run_name": "sequence", **options.pop("args", {})}
        with pytest.raises(UserError, match=message) as raised:
            DescentTrainer(
                **{
                    "model": model_of("sequence", "bert"),
                    "args": arguments(tmp_path, **args),
                    "train_dataset": rows,
                    "eval_dataset": rows,
                    "data_collator": collate,
                    "report_to_cudt": tmp_path / "outputs",
                    **options,
                }
            )
        assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match="are not one class for each example or token"):
        trainer_for(tmp_path, "sequence", eval_dataset=Rows(left)).train()
    assert not list((tmp_path / "outputs").rglob("last.safetensors"))


def test_an_adapter_on_a_model_without_a_source_is_refused(tmp_path):
    adapted = get_peft_model(
        model_of("causal", "llama"), LoraConfig(task_type="CAUSAL_LM", r=2, target_modules="all-linear")
    )
    with pytest.raises(UserError, match="save it with save_pretrained and load it from there"):
        trainer_for(tmp_path, "causal", model=adapted)


def test_arguments_that_were_changed_before_training_are_in_the_recipe(tmp_path):
    """As `hyperparameter_search` changes them."""
    trainer = trainer_for(tmp_path, "sequence")
    trainer.args.learning_rate = 0.02
    trainer.train()
    assert trainer.stored_run is not None
    assert open_run(trainer.stored_run.run.path).recipe.settings.training.learning_rate == 0.02


def test_examples_whose_class_does_not_count_are_not_stored(tmp_path):
    rows = [dict(examples("sequence", 12, seed=1)[index]) for index in range(12)]
    rows[3]["labels"] = -100
    trainer, run = trained(tmp_path, "sequence", eval_dataset=Rows(rows))
    kept = Rows([row for row in rows if row["labels"] != -100])
    assert run.read_table("layers")["loss"].tolist() == in_memory(trainer, kept)


def test_padding_on_the_left_is_refused(tmp_path):
    def left(rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {name: value.flip(1) if value.ndim == 2 else value for name, value in collate(rows).items()}

    with pytest.raises(UserError, match="let the tokenizer pad on the right"):
        trainer_for(tmp_path, "sequence", data_collator=left).train()


def test_texts_are_predicted_with_the_saved_tokenizer(tmp_path):
    trainer, run = trained(tmp_path, "sequence", processing_class=tiny_tokenizer(pairs_have_types=False))
    texts = ["a good film .", "boring !"]
    found = run.predict(texts, device="cpu")
    inputs = tiny_tokenizer(pairs_have_types=False)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = trainer.model.eval()(**inputs).logits.softmax(-1)
    assert found.probabilities == pytest.approx(expected.numpy(), abs=1e-6)
    assert AutoTokenizer.from_pretrained(run.path / "model")("a film").input_ids == [2, 30, 38, 3]


def test_early_exits_are_evaluated(call: CommandLine, tmp_path):
    _, run = trained(tmp_path, "sequence")
    code, _, error = call("eval-ood", run.path, "--gammas", "0", "--exits", "--device", "cpu")
    assert code == 0, error
    assert set(run.read_table("exits")["split"]) == {"validation", "test"}


def test_the_best_weights_are_those_that_trainer_loads_at_the_end(tmp_path):
    trainer, run = trained(
        tmp_path,
        "sequence",
        args={
            **{"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps"},
            **{"save_steps": 2, "max_steps": 8, "learning_rate": 0.3},
        },
    )
    info = run.finished_info()
    assert (run.weights, run.weights_file("best").is_file(), run.weights_file("last").exists()) == ("best", True, False)
    assert info.best.validation_loss == pytest.approx(in_memory(trainer, examples("sequence", 12, seed=1)).expected[-1])
    assert info.best.epoch == math.ceil(trainer.state.best_global_step / 4)
    assert info.multipliers is not None
    assert info.multipliers.best == by_layer(trainer, "multiplier")[trainer.state.best_global_step - 1].tolist()
    assert info.multipliers.last == by_layer(trainer, "multiplier")[-1].tolist()
    assert info.multipliers.last != info.multipliers.best
    assert [one.slack for one in info.verdicts] == pytest.approx([value / 5 for value in info.multipliers.best])


def test_an_interrupted_training_is_resumed_into_its_run(tmp_path, monkeypatch):
    args = {"save_strategy": "steps", "save_steps": 2}
    first = trainer_for(tmp_path, "sequence", args)

    def stop(*_: Any, **__: Any) -> None:
        if first.state.global_step == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(first, "get_batch_samples", _before(stop, first.get_batch_samples))
    with pytest.raises(KeyboardInterrupt):
        first.train()
    assert first.stored_run is not None
    assert first.stored_run.run.info().status == "interrupted"
    second = trainer_for(tmp_path, "sequence", args)
    second.train(resume_from_checkpoint=True)
    assert second.stored_run is not None
    run = open_run(second.stored_run.run.path)
    assert run.path == first.stored_run.run.path
    assert run.info().status == "finished"
    assert second.noise.sigma_x == first.noise.sigma_x
    assert run.finished_info().sigma_x.training == first.noise.sigma_x
    history = run.read_table("history")
    assert history[history["split"] == "train"]["step"].unique().tolist() == [1, 2, 3, 4]


def _before(first: Any, then: Any) -> Any:
    def both(*args: Any, **options: Any) -> Any:
        first()
        return then(*args, **options)

    return both


def test_the_programs_generators_are_left_as_they_were(tmp_path):
    draws = []
    for options in ({}, {"report_to_cudt": None, "test_dataset": None}):
        trainer = trainer_for(tmp_path, "sequence", **options)
        trainer.train()
        draws.append((torch.rand(2).tolist(), random.random(), np.random.random()))
    assert draws[0] == draws[1]


@pytest.mark.forks
def test_two_processes_write_one_run(tmp_path):
    def train() -> Any:
        trainer, run = trained(tmp_path, "sequence", args={"per_device_train_batch_size": 4, "run_name": None})
        return run.path, in_memory(trainer, examples("sequence", 12, seed=1)).expected

    (path, expected), other = together(2, train)
    assert other == (path, expected)
    run = open_run(path)
    assert run.recipe.name == "bert-sequence"
    assert run.finished_info().processes == 2
    assert run.recipe.settings.training.batch_size == 8
    assert run.read_table("layers")["loss"].tolist() == pytest.approx(expected, abs=1e-6)
