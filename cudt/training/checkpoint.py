"""Checkpoints: `last.pt`, from which training resumes, and the weights of the best and of the last epoch."""

from __future__ import annotations

import dataclasses
import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from cudt.config.schema import Weights
from cudt.method.descent import LayerwiseDescent
from cudt.models.layer_losses import LayerwiseLosses
from cudt.runs.run import Run
from cudt.training.history import History
from cudt.utils import device
from cudt.utils.errors import DataWarning, UserError
from cudt.utils.files import write_atomically


@dataclass
class TrainingState:
    """How far training is, and its best epoch so far."""

    epoch: int = 0
    step: int = 0
    step_in_epoch: int = 0
    sigma_x: float = math.nan
    best: list[float] | None = None
    """The rank of the best epoch; lower is better, compared from left to right."""
    best_epoch: int = 0
    best_slack: list[float] = field(default_factory=list)
    """In units of the loss, at the end of the best epoch, before it restarts."""
    last_slack: list[float] = field(default_factory=list)
    """The same of the last epoch."""
    best_multipliers: list[float] | None = None
    validation_losses: list[float] | None = None
    """Of the last validation, by layer."""


@dataclass(frozen=True)
class Checkpoints:
    """Saves and restores everything that training changes."""

    run: Run
    layerwise: LayerwiseLosses
    optimizer: torch.optim.Optimizer
    descent: LayerwiseDescent

    def exist(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.run.last_checkpoint.is_file()

    def save(self, state: TrainingState, history: History) -> None:
        """Write history.csv and last.pt, in this order: `restore` drops rows that are newer than the checkpoint."""
        history.write(self.run)
        progress = dataclasses.asdict(state)
        validation_losses = progress.pop("validation_losses")
        content = {
            "progress": progress,
            "validation_losses": validation_losses,
            "weights": self.layerwise.learned_weights(),
            "optimizer": self.optimizer.state_dict(),
            "descent": self.descent.state_dict(),
            "history_length": len(history.rows),
            "generator": torch.get_rng_state(),
            "device_generator": device.generator_state(),
        }
        write_atomically(self.run.last_checkpoint, lambda file: torch.save(content, file))

    def restore(self) -> tuple[TrainingState, History]:
        """Load last.pt into model, optimisers and random generators; return the state and the history."""
        content = load_last(self.run)
        self.layerwise.load_learned_weights(content["weights"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.descent.load_state_dict(content["descent"])
        torch.set_rng_state(content["generator"])
        # Earlier versions called it after CUDA, the only accelerator they knew.
        device.set_generator_state(content.get("device_generator", content.get("cuda_generator")))
        state = TrainingState(**content["progress"], validation_losses=content["validation_losses"])
        if "best_multipliers" not in content["progress"]:
            # Ranks of the two rules cannot be compared.
            state.best = None
            warnings.warn(
                f"{self.run.path} was begun with cudt 0.1, which chose the best epoch by another rule; "
                "the best epoch is chosen among those that follow",
                DataWarning,
                stacklevel=2,
            )
        return state, History.read(self.run, content["history_length"])

    def save_weights(self, which: Weights) -> None:
        """Write the learned weights to best.safetensors or last.safetensors."""
        weights = {name: value.contiguous() for name, value in self.layerwise.learned_weights().items()}
        write_atomically(self.run.weights_file(which), lambda file: file.write(save(weights)))


def load_last(run: Run) -> dict[str, Any]:
    """The content of last.pt, on the CPU; code in the file is not executed."""
    try:
        return torch.load(run.last_checkpoint, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds of exceptions for a damaged file
        raise UserError(
            f"{run.last_checkpoint}: damaged ({type(error).__name__}); delete it to train from the beginning"
        ) from None


def load_weights(run: Run) -> dict[str, Tensor]:
    """The weights of a run that are evaluated, on the CPU."""
    file = run.weights_file(run.weights)
    if run.other_weights and not file.is_file():
        raise UserError(
            f"{file}: missing (earlier versions of cudt kept only the best weights); "
            f"leave out --weights, or delete {run.path} to train again"
        )
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file}: missing or damaged ({error}); delete {run.path} to train again") from None
