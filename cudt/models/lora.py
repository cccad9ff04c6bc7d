"""Low-rank adapters (LoRA) in a recipe: the section that all pretrained models share, and its
learning rate.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from cudt.config.alternatives import WordOrWords
from cudt.config.bounds import Count, Positive
from cudt.config.schema import FINE_TUNING, Schedule
from cudt.config.section import Section


class Lora(Section):
    """Low-rank adapters; the defaults are the paper's."""

    rank: Count = 6
    """Rank of the adapters."""
    alpha: Positive = 8.0
    """Scale of the adapters: updates are multiplied by alpha/rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Probability that an input of an adapter is dropped in training."""
    targets: WordOrWords = "all-linear"
    """Modules with adapters: `all-linear`, `default` (what peft adapts; queries and values of
    Llama), or names."""

    @field_validator("targets")
    @classmethod
    def _are_known(cls, targets: str | list[str]) -> str | list[str]:
        if isinstance(targets, str) and targets not in ("all-linear", "default"):
            raise ValueError("must be all-linear, default, or a list of names of modules")
        return targets


def schedule_with(lora: Lora | None) -> Schedule:
    """The learning rate: adapters start at 0 and have few weights, so they take larger steps than a
    whole model.
    """
    return FINE_TUNING if lora is None else Schedule(2e-4, FINE_TUNING.warmup_share)
