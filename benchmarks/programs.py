"""The programs that take turns: `python -m benchmarks.programs NAME JOB`, where JOB is JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.bench import Turns
from cudt.utils.device import survive_torchvision_mismatch

survive_torchvision_mismatch()

from safetensors.torch import load_file  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from transformers import (  # noqa: E402
    AutoModel,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import cudt  # noqa: E402
from cudt.evaluation.evaluate import Grid, evaluate_ood  # noqa: E402
from cudt.runs.export import export  # noqa: E402
from cudt.training import train as training  # noqa: E402
from cudt.training.display import Display  # noqa: E402

turns = Turns()


def train(job: dict[str, Any]) -> None:
    """cudt's own training of a recipe, one update in a turn."""
    recipe = cudt.load_recipe(job["recipe"], job["settings"], objective=job["objective"])
    folder, root = Path(job["folder"]), Path(job["data_root"])
    training.train(recipe, folder, "cpu", root, TurnsDisplay(Console(quiet=True)))


class TurnsDisplay(Display):
    """Waits for the next turn after each update of a training of one epoch."""

    def __enter__(self) -> None:
        turns.begin()

    def __exit__(self, *exception: object) -> None: ...

    def update(self, step: int, per_epoch: int, losses: Sequence[float]) -> None:
        if step < per_epoch:
            turns.end()
        else:
            turns.finish()

    def validated(self, line: str) -> None: ...


def train_with_trainer(job: dict[str, Any]) -> None:
    """transformers.Trainer with its defaults on the same examples, one update in a turn."""

    class TurnsCallback(TrainerCallback):
        def on_train_begin(self, *given: Any, **named: Any) -> None:
            turns.begin()

        def on_step_end(self, arguments: Any, state: Any, control: Any, **named: Any) -> None:
            if state.global_step < state.max_steps:
                turns.end()
            else:
                turns.finish()

    Trainer(
        MeanPooled(job["model"]),
        arguments_for(
            job,
            per_device_train_batch_size=job["batch_size"],
            num_train_epochs=1,
            learning_rate=5e-5,
            lr_scheduler_type="constant",
            train_sampling_strategy=job["sampling"],
            logging_steps=10,
            save_strategy="no",
        ),
        train_dataset=json.loads(Path(job["rows"]).read_text(encoding="utf-8")),
        data_collator=collator(job["model"]),
        callbacks=[TurnsCallback()],
    ).train()


def evaluate(job: dict[str, Any]) -> None:
    """cudt trains a run before its first turn; then `eval-ood` of it, a batch in each turn."""
    is_first = True

    def track(items: Iterable[Any], total: int, what: str) -> Iterator[Any]:
        nonlocal is_first
        for item in items:
            # Loading, before the first batch, is not counted.
            turns.begin() if is_first else turns.end()
            is_first = False
            yield item

    recipe = cudt.load_recipe(job["recipe"], job["settings"], objective="erm")
    root, out = Path(job["data_root"]), Path(job["folder"]) / "runs"
    run = training.train(recipe, out, "cpu", root, Display(Console(quiet=True)))
    export(run, training.load(run, "cpu", root), Path(job["model"]))
    evaluate_ood(run, Grid(gammas=[0.0], perturbations=["gaussian"]), "cpu", root, track)
    turns.finish(accuracy=run.read_table("ood")["value"].iloc[0])


def predict_with_trainer(job: dict[str, Any]) -> None:
    """Trainer.predict of the model that cudt exported, a batch in each turn."""
    arguments = arguments_for(job, per_device_eval_batch_size=job["batch_size"])
    trainer = Trainer(MeanPooled(job["model"]), arguments, data_collator=collator(job["model"]))
    rows, size, right = json.loads(Path(job["rows"]).read_text("utf-8")), job["batch_size"], 0.0
    turns.begin()
    for start in range(0, len(rows), size):
        if start:
            turns.end()
        found: Any = trainer.predict(rows[start : start + size])
        right += (found.predictions.argmax(-1) == found.label_ids).sum()
    turns.finish(accuracy=right / len(rows))


class MeanPooled(nn.Module):
    """The classifier of imdb-minilm without cudt: an encoder, the mean over tokens, and a linear
    readout, which is read if the folder has one.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.encoder = AutoModel.from_pretrained(folder, add_pooling_layer=False)
        self.head = nn.Linear(self.encoder.config.hidden_size, 2)
        if (readout := Path(folder) / "readout.safetensors").is_file():
            self.head.load_state_dict(load_file(readout))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        state = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1)
        logits = self.head((state * mask).sum(1) / mask.sum(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def collator(folder: str) -> DataCollatorWithPadding:
    """Pads a batch to its longest example, as most programs with Trainer do."""
    return DataCollatorWithPadding(AutoTokenizer.from_pretrained(folder))


def arguments_for(job: dict[str, Any], **settings: Any) -> TrainingArguments:
    """Arguments of a Trainer that prints and reports nothing."""
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True}
    return TrainingArguments(str(Path(job["folder"]) / "trainer"), **quiet, **settings)


if __name__ == "__main__":
    programs = (train, train_with_trainer, evaluate, predict_with_trainer)
    {one.__name__: one for one in programs}[sys.argv[1]](json.loads(sys.argv[2]))
