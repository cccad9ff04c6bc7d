"""Pretrained models in a recipe: whether the Python code in a model's folder may run. By default it never does."""

from __future__ import annotations

from typing import Annotated

from cudt.config.schema import ModelSection
from cudt.config.section import ADDED_LATER


class TrustedName(str):
    """The name of a pretrained model whose own code may run, because a recipe says so.

    A text, so that tasks and models that load by name pass the permission on without knowing of it.
    """


class PretrainedSection(ModelSection):
    """The `model` section of models that load pretrained weights or embeddings."""

    trust_remote_code: Annotated[bool, ADDED_LATER] = False
    """Whether Python code in the pretrained model's folder may run. Such code can do anything that you can do on this
    machine: set true only for a model whose code you have read."""

    def trusted(self, pretrained: str) -> str:
        """The name of a pretrained model, marked if its code may run."""
        return TrustedName(pretrained) if self.trust_remote_code else pretrained
