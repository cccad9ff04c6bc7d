"""Only the forward and the backward pass of the same batches, one in a turn: what no trainer can do without."""

from __future__ import annotations

from benchmarks.speed.programs.mean_pooled import MeanPooled, collator, read_rows
from benchmarks.speed.turns import Turn

turn, job = Turn(), Turn.job()
model, collate = MeanPooled(job["model"]).train(), collator(job["model"])
rows, size = read_rows(job["rows"]), job["batch_size"]
turn.begin()
for start in range(0, len(rows), size):
    if start:
        turn.end()
    batch = collate(rows[start : start + size])
    model(batch["input_ids"], batch["attention_mask"], batch["labels"])["loss"].backward()
    model.zero_grad()
turn.finish()
