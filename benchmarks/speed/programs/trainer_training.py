"""transformers.Trainer with its defaults on the same examples, one update in a turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainingArguments

from benchmarks.speed.programs.mean_pooled import MeanPooled, collator, read_rows
from benchmarks.speed.turns import Turn

turn, job = Turn(), Turn.job()


class Turns(TrainerCallback):
    """Waits for the next turn after each update."""

    def on_train_begin(self, *given: Any, **named: Any) -> None:
        turn.begin()

    def on_step_end(self, arguments: Any, state: Any, control: Any, **named: Any) -> None:
        if state.global_step < state.max_steps:
            turn.end()
        else:
            turn.finish()


arguments = TrainingArguments(
    str(Path(job["folder"]) / "trainer"),
    per_device_train_batch_size=job["batch_size"],
    num_train_epochs=1,
    learning_rate=5e-5,
    lr_scheduler_type="constant",
    train_sampling_strategy=job["sampling"],
    logging_steps=10,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
Trainer(
    MeanPooled(job["model"]),
    arguments,
    train_dataset=read_rows(job["rows"]),
    data_collator=collator(job["model"]),
    callbacks=[Turns()],
).train()
