"""`cudt eval-ood` without noise against Trainer.predict, on test reviews of IMDb with a model
trained before.
"""

from __future__ import annotations

from benchmarks.speed import reviews
from benchmarks.speed.bench import Bench, Outcome, Setting
from benchmarks.speed.turns import Program

_REVIEWS, _BATCH = 1000, 32


def _measure(setting: Setting) -> list[Outcome]:
    data_root = reviews.require(setting)
    overrides = [
        "task.max_length=512",
        "task.limit={train: 96, validation: 8, test: " + str(_REVIEWS) + "}",
        "training.batch_size=8",
        "training.learning_rate=1e-4",
        "training.readout_learning_rate=5e-3",
        "training.group_by_length=true",
        "noise.gamma_train=0.0",
        f"evaluation.batch_size={_BATCH}",
    ]
    rows, model_file = setting.folder / "rows.json", setting.folder / "model.txt"
    reviews.write_rows(overrides, "test", data_root, rows)
    our_job = {
        "recipe": reviews.RECIPE,
        "overrides": overrides,
        "data_root": data_root,
        "model_file": model_file,
    }
    peer_job = {
        "rows": rows,
        "model_file": model_file,
        "batch_size": _BATCH,
        "rows_per_turn": _BATCH,
    }
    with (
        Program("cudt_evaluation", setting.folder / "cudt", **our_job) as ours,
        Program("trainer_prediction", setting.folder / "trainer", **peer_job) as peer,
    ):
        ours_total = peer_total = 0.0
        while ours.result is None or peer.result is None:
            ours_total += ours.turn()
            peer_total += peer.turn()
    note = (
        f"{_REVIEWS} reviews of up to 512 tokens, batches of {_BATCH}, γ = 0; cudt also measures "
        "16 examples that "
        f"training used and writes tables; accuracies {ours.result['accuracy']:.4f} and "
        f"{peer.result['accuracy']:.4f}"
    )
    return [Outcome(_REVIEWS / ours_total, _REVIEWS / peer_total, "examples/CPU s", note=note)]


BENCH = Bench(
    name="eval-ood",
    what="examples per second of eval-ood ÷ those of Trainer.predict (MiniLM, IMDb)",
    goal=1.7,
    higher_is_better=True,
    measure=_measure,
)
