"""The operations of updates and evaluations, counted on small shapes and on layers of the paper's sizes."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.scale import formulas
from benchmarks.scale.shapes import Shape


@dataclass(frozen=True)
class Counted:
    """What was counted for a shape, and what the formula gives."""

    shape: Shape
    erm: int
    """An update that reads the last layer."""
    erm_formula: float
    constrained: int
    """An update that reads all layers."""
    constrained_formula: float
    evaluation: int
    evaluation_formula: float

    @property
    def error(self) -> float:
        """The largest relative error."""
        pairs = [
            (self.erm, self.erm_formula),
            (self.constrained, self.constrained_formula),
            (self.evaluation, self.evaluation_formula),
        ]
        return max(abs(formula / count - 1) for count, formula in pairs)


def measure(shape: Shape) -> Counted:
    """Count the operations of a shape."""
    from benchmarks.scale import counters
    from benchmarks.scale.networks import Work

    work, formula = Work(shape), formulas.operations(shape)
    return Counted(
        shape,
        counters.operations(lambda: work.update(1)),
        formula.update(1),
        counters.operations(lambda: work.update(shape.layers)),
        formula.update(shape.layers),
        counters.operations(work.evaluate),
        formula.evaluation(shape.layers),
    )
