"""An epoch of real reviews with length grouping against transformers.Trainer with its defaults."""

from __future__ import annotations

from benchmarks.speed import reviews
from benchmarks.speed.bench import Bench, Outcome, Setting
from benchmarks.speed.turns import Program

_UPDATES, _BATCH = 6, 8


def _measure(setting: Setting) -> list[Outcome]:
    data_root = reviews.require(setting)
    overrides = [
        "task.max_length=512",
        f"task.limit.train={_BATCH * _UPDATES}",
        "task.limit.validation=8",
        f"training.batch_size={_BATCH}",
        "training.optimizer=adamw",
        "training.group_by_length=true",
        "noise.gamma_train=0.0",
    ]
    rows = setting.folder / "rows.json"
    reviews.write_rows(overrides, "train", data_root, rows)
    peer_job = {
        "model": reviews.model_folder(),
        "rows": rows,
        "batch_size": _BATCH,
        "sampling": "random",
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
        rounds = [(ours.turn(), peer.turn()) for _ in range(_UPDATES)]
    ours_total, peer_total = (sum(seconds) for seconds in zip(*rounds, strict=True))
    note = f"{_BATCH * _UPDATES} reviews of up to 512 tokens in batches of {_BATCH}; larger batches pad more"
    return [Outcome(ours_total, peer_total, "CPU s/epoch", note=note)]


BENCH = Bench(
    name="epoch-grouped",
    what="epoch with group_by_length ÷ epoch of transformers.Trainer by default (MiniLM, IMDb)",
    goal=0.65,
    higher_is_better=False,
    measure=_measure,
)
