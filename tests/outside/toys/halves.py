"""An objective: the mean of the middle and the last layer's loss."""

from __future__ import annotations

from torch import Tensor

from cudt.method.objectives import Objective


class Halves(Objective):
    """J = (f_{L/2} + f_L) / 2."""

    @property
    def layers(self) -> list[int]:
        """The middle one and the last."""
        return sorted({(self.descent.n_layers + 1) // 2, self.descent.n_layers})

    def value(self, f: Tensor) -> Tensor:
        """The mean of both."""
        return self.descent.in_form(f).mean()


OBJECTIVE = Halves
