"""How the experiments of a reproduction ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cudt.reproduce.scale import Experiment


@dataclass
class ExperimentOutcome:
    """How an experiment ended."""

    experiment: Experiment
    runs: int = 0
    """Trained runs, earlier commands included."""
    evaluated: int = 0
    skipped: list[str] = field(default_factory=list)
    """What was skipped, and why."""
    failed: list[str] = field(default_factory=list)
    """What failed, and why."""

    @property
    def is_done(self) -> bool:
        return not self.skipped and not self.failed

    def problems(self) -> list[str]:
        """What was skipped or failed, and why."""
        skipped = [f"skipped: {problem}" for problem in self.skipped]
        return skipped + [f"failed: {problem}" for problem in self.failed]

    def summary(self) -> str:
        state = "partly failed" if self.failed else "done"
        if self.skipped and not self.failed:
            state = "partly skipped" if self.runs else "skipped"
        return f"{state:14} {self.experiment.name}: {self.runs} runs, {self.evaluated} evaluated"


def summary(outcomes: Sequence[ExperimentOutcome]) -> list[str]:
    """One line per experiment, followed by what was skipped or failed."""
    lines = []
    for outcome in outcomes:
        lines.append(outcome.summary())
        lines += [f"    {line}" for line in outcome.problems()]
    return lines
