"""Empirical risk minimisation: J = f_L, the loss of the last layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from cudt.method.objectives.base import Objective

if TYPE_CHECKING:
    from torch import Tensor


class Erm(Objective):
    """J = f_L."""

    label = "erm"
    style: ClassVar[dict[str, Any]] = {"color": "#D55E00", "linestyle": "--", "marker": "s"}
    card = "Trained on the loss of its last layer alone, for comparison."
    reads_all_layers = False

    def value(self, f: Tensor) -> Tensor:
        """f_L, or log f_L in the log form."""
        return self.descent.in_form(f[-1])


OBJECTIVE = Erm
