"""What the constraints cost: an update of a constrained run against one of ERM."""

from __future__ import annotations

from benchmarks.speed import reviews
from benchmarks.speed.bench import Bench, Outcome, Setting, compared
from benchmarks.speed.turns import Program

_WARMUP, _ROUNDS = 3, 5


def _measure(setting: Setting) -> list[Outcome]:
    data_root = reviews.require(setting)
    overrides = [
        f"task.limit.train={16 * (_WARMUP + _ROUNDS)}",
        "task.limit.validation=16",
        "training.batch_size=16",
        "noise.gamma_train=0.8",
    ]
    shared = {"recipe": reviews.RECIPE, "overrides": overrides, "data_root": data_root}
    with (
        Program(
            "cudt_training", setting.folder / "constrained", objective="constrained", **shared
        ) as ours,
        Program("cudt_training", setting.folder / "erm", objective="erm", **shared) as erm,
    ):
        rounds = [(ours.turn(), erm.turn()) for _ in range(_WARMUP + _ROUNDS)][_WARMUP:]
    return [compared([one for one, _ in rounds], [other for _, other in rounds], "CPU s/update")]


BENCH = Bench(
    name="constrained-step",
    what="constrained update ÷ ERM update (MiniLM, 16 × 128 tokens, γ .8)",
    goal=1.05,
    higher_is_better=False,
    measure=_measure,
)
