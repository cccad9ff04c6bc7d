"""Updates that do not fit into memory: `training.oom: split` repeats them in smaller micro-batches.

An update is back-propagated before anything changes: the weights, the multipliers and the slacks step after it. So an
update whose micro-batches do not fit is forgotten (gradients, random numbers) and repeated in twice as many. The result
is that of `training.accumulation` of this size, and without dropout the same to the last bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from cudt.config.schema import Recipe, Training
from cudt.utils.device import empty_cache, random_state, set_random_state
from cudt.utils.errors import DataWarning, UserError

Result = TypeVar("Result")


def check_split(training: Training, batch_size: int, n_processes: int) -> None:
    """Refuse a batch that has fewer examples than micro-batches."""
    if batch_size < training.accumulation * n_processes:
        raise UserError(
            f"training.batch_size: cannot split {batch_size} examples into {training.accumulation} micro-batches on "
            f"{n_processes} processes; lower training.accumulation or use fewer processes"
        )


class UpdateSplitError(Exception):
    """Memory did not suffice for an update: nothing has changed, and its micro-batches are smaller from here on."""


class Splitting:
    """In how many micro-batches updates are back-propagated, from the recipe's number on."""

    def __init__(self, recipe: Recipe, optimizer: torch.optim.Optimizer, batch_size: int, n_processes: int) -> None:
        self._recipe, self._optimizer = recipe, optimizer
        self._n_examples = -(-batch_size // n_processes)
        # Another process would wait for the gradients of this one.
        self._can_split = recipe.training.oom == "split" and n_processes == 1
        self._n_processes = n_processes
        self.parts = recipe.training.accumulation
        """Micro-batches of an update in each process."""

    def guarded(self, back_propagate: Callable[[], Result], update: int) -> Result:
        """The result of back-propagation; raises UpdateSplitError, or MachineFaultError with what to change."""
        before = random_state() if self._can_split else None
        try:
            return back_propagate()
        except (MemoryError, torch.OutOfMemoryError):
            if before is None or self._size == 1:
                raise
        # After the handler, because the error holds the tensors of the update.
        self._optimizer.zero_grad()
        set_random_state(before)
        empty_cache()
        self._halve(update)
        raise UpdateSplitError

    @property
    def _size(self) -> int:
        """Examples of the largest micro-batch."""
        return -(-self._n_examples // self.parts)

    def _halve(self, update: int) -> None:
        self.parts = min(2 * self.parts, self._n_examples)
        warnings.warn(
            f"update {update}: out of memory; from here on, an update has {self.parts} micro-batches of up to "
            f"{self._size} examples (training.oom: split)",
            DataWarning,
            stacklevel=2,
        )

    def _advice(self) -> str:
        """What takes less memory, as far as it is not set yet."""
        ways = []
        if self._size > 1 and self._n_processes == 1:
            ways.append(f"set training.oom=split, which halves the micro-batches of {self._size} examples")
        elif self._size > 1:
            ways.append(f"raise training.accumulation (now {self.parts}), which starts another run")
        model = self._recipe.model
        if not getattr(model, "gradient_checkpointing", True):
            ways.append("set model.gradient_checkpointing=true")
        if model.generates_text and self._recipe.readout.tokens is None:
            ways.append("set readout.tokens")
        return ", or ".join([*ways, "use a smaller model or a device with more memory"])
