"""What somebody else's loop minimises: an objective of the layer losses, with its constraints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable

from torch import Tensor

from cudt.config.schema import Descent
from cudt.integrations.descent_verdict import layer_key
from cudt.integrations.input_noise import Inputs
from cudt.integrations.layer_reader import LayerReader
from cudt.method.descent import LayerwiseDescent, descent_of
from cudt.method.objectives import Objective, make_objective
from cudt.tasks.base import IGNORED
from cudt.utils.errors import UserError


class DescentProblem:
    """The objective, how layers are read, and what the last updates gave."""

    def __init__(
        self, settings: Descent, objective: str, reader: LayerReader, reference: float
    ) -> None:
        self.reader = reader
        self._warmup_epochs = settings.warmup_epochs
        self.objective: Objective = make_objective(
            objective, descent_of(settings, reader.n_layers, reference)
        )
        self._last: Tensor | None = None
        self._sum, self._updates = 0.0, 0

    @property
    def descent(self) -> LayerwiseDescent:
        """The constraints, with λ and slack."""
        return self.objective.descent

    def is_warming_up(self, epoch: float) -> bool:
        """Whether the constraints are off; `epoch` counts from 0."""
        return self.objective.is_constrained and epoch < self._warmup_epochs

    def note(self, f: Tensor) -> None:
        """Keep the losses of an update for the next log."""
        self._last = f
        self._sum += f[-1].item()
        self._updates += 1

    def logged(self, objective: float) -> dict[str, float]:
        """What is logged of the updates since the last log; `objective` is the mean of what was
        minimised.

        `loss` is the mean f_L. What has a number for each layer is that of the last update.
        """
        if self._last is None:
            return {}
        mean, f, descent = self._sum / self._updates, self._last, self.descent
        self._last, self._sum, self._updates = None, 0.0, 0
        if not self.objective.reads_all_layers:
            return {"loss": mean}
        found = {"loss": dict(zip(self.objective.layers, f.tolist(), strict=True))}
        if self.objective.constrains:
            every = range(1, descent.n_layers + 1)
            found["violation"] = dict(enumerate(descent.violations(f).tolist(), 1))
            values = {
                "multiplier": descent.multiplier_values,
                "weight": descent.effective_weights(),
            }
            if descent.resilience != "none":
                values["slack"] = descent.slack
            found |= {
                name: dict(zip(every, value.tolist(), strict=True))
                for name, value in values.items()
            }
        by_layer = {
            layer_key(name, layer): value
            for name, values in found.items()
            for layer, value in values.items()
        }
        return {"loss": mean, "objective": objective, **by_layer}


def reference_of(
    settings: Descent, batches: Callable[[], Iterable[Inputs]], *, shifted: bool
) -> float:
    """f_0; `auto` is the entropy of the training labels, the loss of the best answer that ignores
    its input.
    """
    if settings.reference != "auto":
        return settings.reference
    counts = Counter[int]()
    for batch in batches():
        if "labels" not in batch:
            raise UserError(
                "the batches have no 'labels'; add them to the data set, or set "
                "descent.reference to a number"
            )
        labels = batch["labels"][..., 1:] if shifted else batch["labels"]
        if labels.is_floating_point():
            raise UserError(
                "descent.reference: 'auto' needs classes as labels; set it to a loss that is "
                "easy to reach"
            )
        values, numbers = labels[labels != IGNORED].unique(return_counts=True)
        counts.update(dict(zip(values.tolist(), numbers.tolist(), strict=True)))
    if len(counts) < 2:
        raise UserError(
            "descent.reference: 'auto' is the entropy of the training labels, but they are all "
            "the same; set it to a "
            "number, or check the labels"
        )
    total = counts.total()
    return -sum(count / total * math.log(count / total) for count in counts.values())
