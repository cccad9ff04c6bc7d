"""Deep supervision: J = (f_1 + … + f_L) / L. It tells whether the constraints or mere supervision of layers helped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from cudt.method.objectives.base import Objective

if TYPE_CHECKING:
    from torch import Tensor


class Supervised(Objective):
    """J = the mean of f_1 … f_L."""

    label = "supervised"
    style: ClassVar[dict[str, Any]] = {"color": "#009E73", "linestyle": ":", "marker": "^"}
    card = "Trained on the mean loss of all layers (deep supervision), without constraints, for comparison."

    @property
    def layers(self) -> list[int]:
        """The sampled ones, or all; and the last, since processes wait for the gradients of all weights."""
        return sorted({*self.constraints, self.descent.n_layers})

    def value(self, f: Tensor) -> Tensor:
        """The mean of the sampled layers' losses, or of all."""
        return self.descent.in_form(self.spread(f)[self.indices(self.constraints)]).mean()


OBJECTIVE = Supervised
