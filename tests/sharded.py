"""Trains tiny models in processes that share their weights; a test starts `python -m tests.sharded
FOLDER PART`.

One process imports everything and forks the others, because importing takes longer than training.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import patch_environment
from accelerate.utils.launch import prepare_multi_gpu_env
from rich.console import Console
from torch import Tensor
from torch.distributed.tensor import DTensor

from cudt.config import recipe
from cudt.training.train import assemble
from cudt.models.layer_losses import LayerwiseLosses
from cudt.training import train as training
from cudt.training.checkpoint import Checkpoints
from cudt.training.checkpoint_file import FileRecord
from cudt.training.display import ConsoleDisplay
from cudt.training.primal import Primal
from cudt.training.view import TrainingView
from cudt.utils.errors import TrainingInterruptedError
from tests import processes
from tests.cases import Case, write_data
from tests.instructions import write_instructions
from tests.instructions import write_recipe as write_instructions_recipe
from tests.pretrained import tiny_llama, tiny_pretrained
from tests.texts import write_recipe as write_reviews_recipe
from tests.texts import write_reviews

ROOT = Path(__file__).parents[1]
ONE_MACHINE = ROOT / "recipes" / "accelerate" / "fsdp-1x8.yaml"
#: Each process draws its own.
NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FEW = ("task.limit={train: 8, validation: 6}", "evaluation.batch_size=2")
#: By name: the recipe, and settings. Three batches of validation data, so that one process has one
#: more than the other.
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "whole": (
        "untied",
        (
            *(
                "model.lora=null",
                "model.gradient_checkpointing=true",
                "readout.tokens=3",
                "training.clip_norm=0.1",
            ),
            *("training.readout_learning_rate=1e-3", "descent.resilience=slack", "descent.beta=1"),
        ),
    ),
    "log": (
        "tied",
        ("model.lora=null", "descent.form=log", "training.accumulation=2", "training.batch_size=5"),
    ),
    "lora": ("tied", ("training.epochs=1",)),
    "encoder": ("encoder", ("training.epochs=1", "descent.form=linear")),
    "compiled": ("untied", ("model.lora=null", "training.compile=true")),
    "bf16": ("tied", ("model.dtype=bf16", "model.gradient_checkpointing=true")),
}
OFTEN = "training.checkpoint_every=1"
#: Processes before an interruption and after it, and whether the latter share their weights. 0
#: stands for a run that died while saving.
RESUMED = [(2, 3, True), (2, 2, False), (1, 2, True), (0, 1, False), (0, 2, True)]
MODELS = [
    Case("modernbert", "text", "erm"),
    Case("unrolled", "imdb", "log decay"),
    Case("vit", "shapes", "linear decay"),
    Case("dust", "folder", "log slack"),
    Case("unrolled_video", "shapes", "linear slack"),
]


def write_recipes(folder: Path) -> None:
    """A Llama with an own head, one whose head is its embeddings, and a text encoder, each with its
    data."""
    for name in ("untied", "tied"):
        (folder / name).mkdir()
        write_instructions(folder / name)
        write_instructions_recipe(
            folder / name, tiny_llama(folder / name / "llama", tie_word_embeddings=name == "tied")
        )
    (folder / "encoder").mkdir()
    write_reviews(folder / "encoder")
    write_reviews_recipe(
        folder / "encoder", tiny_pretrained(folder / "encoder" / "bert", **NO_DROPOUT)
    )


# ---------------------------------------------------------------- processes


def environment(config: Path = ONE_MACHINE, processes: int = 2) -> dict[str, str]:
    """What `accelerate launch` sets for a configuration file."""
    arguments = launch_command_parser().parse_args(
        ["--config_file", str(config), "--num_processes", str(processes), "script"]
    )
    arguments = _validate_launch_command(arguments)[0]
    return {
        name: value
        for name, value in prepare_multi_gpu_env(arguments).items()
        if os.environ.get(name) != value
    }


def together(count: int, work: Callable[[], object], *, sharded: bool = True) -> None:
    """Do some work in several processes; an error in one of them is raised here."""
    # The default of `accelerate config`, which would leave all processes but one with random
    # weights.
    loading = {"FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
    with patch_environment(**{**environment(processes=count), **loading} if sharded else {}):
        processes.together(count, work)


class _Stopping(ConsoleDisplay):
    """Keeps λ after each update; asks its own process to stop after one."""

    def __init__(self, step: int) -> None:
        super().__init__(Console(quiet=True))
        self._step = step
        self.multipliers: list[list[float] | None] = []

    def update(self, view: TrainingView) -> None:
        self.multipliers.append(view.multipliers)
        if view.step == self._step:
            os.kill(os.getpid(), signal.SIGINT)


def train(
    folder: Path, case: str, out: Path, *settings: str, stop: int = -1
) -> list[list[float] | None]:
    """Train a case of the recipes in a folder, to its end or until an update; returns λ after each
    update."""
    display = _Stopping(stop)
    name, own = CASES[case]
    file = folder / name / ("own.yaml" if name == "encoder" else "tiny-alpaca.yaml")
    limit = ("task.limit={train: 16, validation: 40}",) if name == "encoder" else FEW
    loaded = recipe.load(str(file), (*limit, *own, *settings), objective="constrained")
    with contextlib.suppress(TrainingInterruptedError):
        training.train(loaded, out, "cpu", folder / name, display, export_model=case == "whole")
    return display.multipliers


# ---------------------------------------------------------------- what the tests need


def compare(folder: Path, cases: Iterable[str]) -> None:
    """Cases in one process and in two; what the two hold of the weights."""

    def alone() -> None:
        for case in cases:
            train(folder, case, folder / "alone" / case)

    def shared() -> None:
        gc.disable()

        def counted(*given: Any) -> Any:
            alive.append(sum(isinstance(one, LayerwiseLosses) for one in gc.get_objects()))
            return assemble(*given)

        alive: list[int] = []
        for case in cases:
            with (
                _counting(folder / f"bytes-{case}-{os.environ['RANK']}.json"),
                mock.patch("cudt.training.training.assemble", counted),
            ):
                found = train(folder, case, folder / "shared" / case)
            (folder / f"multipliers-{case}-{os.environ['RANK']}.json").write_text(json.dumps(found))
        (folder / f"alive-{os.environ['RANK']}.json").write_text(json.dumps(alive))

    together(1, alone, sharded=False)
    together(2, shared)


@contextlib.contextmanager
def _counting(file: Path) -> Iterator[None]:
    """Write the bytes of weights, gradients and optimiser that this process holds at its last
    update, and of all."""
    held: dict[str, tuple[int, int]] = {}
    step, prepare = Primal.step, LayerwiseLosses.train

    def counted(self: Primal, update: int) -> None:
        weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        held.update(weights=_held(weights), gradients=_held([weight.grad for weight in weights]))
        step(self, update)
        state = [value for values in self.optimizer.state.values() for value in values.values()]
        held["optimizer"] = _held([value for value in state if value.dim()])

    def watched(self: Any, mode: bool = True) -> Any:
        held.setdefault("model", _held(list(self.parameters())))
        return prepare(self, mode)

    Primal.step, LayerwiseLosses.train = counted, watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        Primal.step, LayerwiseLosses.train = step, prepare  # type: ignore[method-assign]
        file.write_text(json.dumps(held))


def _held(tensors: list[Tensor]) -> tuple[int, int]:
    """Bytes in this process, and of all processes together."""
    here = sum((one.to_local() if isinstance(one, DTensor) else one).nbytes for one in tensors)
    return here, sum(one.numel() * one.element_size() for one in tensors)


def interrupt(folder: Path, count: int, *, sharded: bool) -> None:
    """A run that stops after its third update."""
    together(
        count, lambda: train(folder, "whole", folder / f"from-{count}", stop=3), sharded=sharded
    )


def resume(folder: Path, before: int, count: int, *, sharded: bool) -> None:
    """The run of `interrupt` in another number of processes."""
    out = folder / f"from-{before}-to-{count}-{'sharded' if sharded else 'whole'}"
    shutil.copytree(folder / f"from-{before}", out)
    settings = () if before in (1, 2) else (OFTEN,)
    together(count, lambda: train(folder, "whole", out, *settings), sharded=sharded)


def die(folder: Path) -> None:
    """A run whose processes die after the shards of a later checkpoint are written, before the
    checkpoint is."""
    write = Checkpoints._write_shards

    def dying(self: Checkpoints, step: int) -> dict[str, FileRecord]:
        files = write(self, step)
        if step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return files

    Checkpoints._write_shards = dying  # type: ignore[method-assign]
    with patch_environment(**environment()):
        processes.end(
            processes.start(2, lambda: train(folder, "whole", folder / "from-0", OFTEN), folder)
        )
    Checkpoints._write_shards = write  # type: ignore[method-assign]


def every_model(folder: Path) -> None:
    """Models of all kinds, without dropout."""
    (folder / "models").mkdir()
    write_data(folder / "models")
    attention, functional = torch.nn.functional.scaled_dot_product_attention, torch.nn.functional

    def without(*inputs: Any, dropout_p: float = 0.0, **options: Any) -> Tensor:
        return attention(*inputs, **options)

    def work(out: Path) -> None:
        functional.dropout = lambda values, *settings, **options: values
        functional.scaled_dot_product_attention = without
        for case in MODELS:
            loaded = case.recipe(folder / "models")
            training.train(
                loaded, out / str(case), "cpu", folder / "models", _Stopping(-1)
            )

    together(1, lambda: work(folder / "alone"), sharded=False)
    together(2, lambda: work(folder / "shared"))


def core(folder: Path) -> None:
    """The part that every run of the tests checks."""
    compare(folder, ["whole", "lora"])
    interrupt(folder, 2, sharded=True)
    resume(folder, 2, 1, sharded=False)


def more(folder: Path) -> None:
    """The part that takes longer."""
    compare(folder, ["whole", "log", "encoder", "compiled", "bf16"])
    interrupt(folder, 2, sharded=True)
    interrupt(folder, 1, sharded=False)
    die(folder)
    for before, count, is_sharded in RESUMED:
        resume(folder, before, count, sharded=is_sharded)
    every_model(folder)


if __name__ == "__main__":
    {"core": core, "more": more}[sys.argv[2]](Path(sys.argv[1]))
