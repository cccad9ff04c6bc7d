"""Trainer.predict of the model that cudt exported, some batches in each turn."""

from __future__ import annotations

from pathlib import Path

from transformers import Trainer, TrainingArguments

from benchmarks.speed.programs.mean_pooled import MeanPooled, accuracy, collator, read_rows
from benchmarks.speed.turns import Turn

turn, job = Turn(), Turn.job()
model = Path(job["model_file"]).read_text(encoding="utf-8")
arguments = TrainingArguments(
    str(Path(job["folder"]) / "trainer"),
    per_device_eval_batch_size=job["batch_size"],
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(MeanPooled(model), arguments, data_collator=collator(model))
rows, size = read_rows(job["rows"]), job["rows_per_turn"]
right = 0.0
turn.begin()
for start in range(0, len(rows), size):
    if start:
        turn.end()
    part = rows[start : start + size]
    right += accuracy(trainer.predict(part)) * len(part)
turn.finish(accuracy=right / len(rows))
