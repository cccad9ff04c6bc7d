"""Pretrained models in a recipe: which version is loaded."""

from __future__ import annotations

from cudt.config.revision import Revision
from cudt.config.schema import ModelSection


class PretrainedName(str):
    """The name of a pretrained model, with what a recipe says about loading it.

    A text, so that tasks and models that load by name pass the rest on without knowing of it.
    """

    revision: str | None
    """The version on the hub; None for the newest."""

    def __new__(cls, name: str, *, revision: str | None = None) -> PretrainedName:
        made = super().__new__(cls, name)
        made.revision = revision
        return made

    @classmethod
    def of(cls, name: str) -> PretrainedName:
        """A name as it is; a plain text names no revision."""
        return name if isinstance(name, cls) else cls(name)


class PretrainedSection(ModelSection):
    """The `model` section of models that load pretrained weights or embeddings."""

    revision: Revision | None = None
    """Version of the pretrained model on the hub: a branch, a tag or the hash of a commit; null for
    the newest. Refused for a model in a folder, which has no versions."""

    @property
    def source(self) -> PretrainedName | None:
        """The pretrained model that is loaded; None if there is none."""
        return None

    def named(self, pretrained: str) -> PretrainedName:
        """The name of a pretrained model with what the section says about loading it."""
        return PretrainedName(pretrained, revision=self.revision)


class PretrainedTextSection(PretrainedSection):
    """The same for models that are pretrained as a whole and read what their own tokenizer makes of
    texts.
    """

    pretrained: str

    @property
    def source(self) -> PretrainedName:
        return self.named(self.pretrained)

    @property
    def tokenizer_source(self) -> str:
        return self.source
