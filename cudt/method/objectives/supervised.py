"""Deep supervision, J = (f_1 + … + f_L) / L: a baseline that trains on all layer losses without
constraints.
"""

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

    def value(self, f: Tensor) -> Tensor:
        """The mean loss of all layers."""
        return self.descent.in_form(f).mean()


OBJECTIVE = Supervised
