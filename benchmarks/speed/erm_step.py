"""An update of an ERM run against one of transformers.Trainer, on the same batches without
noise.
"""

from __future__ import annotations

import numpy as np

from benchmarks.speed import reviews
from benchmarks.speed.bench import Bench, Outcome, Setting, compared
from benchmarks.speed.turns import Program
from cudt.data.loader import updates

_WARMUP, _ROUNDS, _BATCH = 3, 5, 16


def _measure(setting: Setting) -> list[Outcome]:
    data_root = reviews.require(setting)
    n_examples = _BATCH * (_WARMUP + _ROUNDS)
    overrides = [
        f"task.limit.train={n_examples}",
        "task.limit.validation=16",
        f"training.batch_size={_BATCH}",
        "training.optimizer=adamw",
        "noise.gamma_train=0.0",
    ]
    # The order of cudt's first epoch with seed 0.
    order = updates(n_examples, _BATCH, np.random.default_rng([0, 0])).ravel()
    rows = setting.folder / "rows.json"
    reviews.write_rows(overrides, "train", data_root, rows, order)
    peer_job = {
        "model": reviews.model_folder(),
        "rows": rows,
        "batch_size": _BATCH,
        "sampling": "sequential",
    }
    our_job = {
        "recipe": reviews.RECIPE,
        "overrides": overrides,
        "objective": "erm",
        "data_root": data_root,
    }
    with (
        Program("cudt_training", setting.folder / "cudt", **our_job) as ours,
        Program("trainer_training", setting.folder / "trainer", **peer_job) as peer,
    ):
        rounds = [(ours.turn(), peer.turn()) for _ in range(_WARMUP + _ROUNDS)][_WARMUP:]
    return [compared([one for one, _ in rounds], [other for _, other in rounds], "CPU s/update")]


BENCH = Bench(
    name="erm-step",
    what="ERM update ÷ update of transformers.Trainer (MiniLM, 16 × 128 tokens, AdamW, clipping)",
    goal=0.95,
    higher_is_better=False,
    measure=_measure,
)
