"""Pretrained models in a recipe: which version is loaded, and whether the Python code in its folder may run."""

from __future__ import annotations

from cudt.config.revision import Revision
from cudt.config.schema import ModelSection


class PretrainedName(str):
    """The name of a pretrained model, with what a recipe says about loading it.

    A text, so that tasks and models that load by name pass the rest on without knowing of it.
    """

    trusts_code: bool
    """Whether Python code in the model's folder may run."""
    revision: str | None
    """The version on the hub; None for the newest."""

    def __new__(cls, name: str, *, trusts_code: bool = False, revision: str | None = None) -> PretrainedName:
        made = super().__new__(cls, name)
        made.trusts_code, made.revision = trusts_code, revision
        return made

    @classmethod
    def of(cls, name: str) -> PretrainedName:
        """A name as it is; a plain text trusts no code and names no revision."""
        return name if isinstance(name, cls) else cls(name)


class PretrainedSection(ModelSection):
    """The `model` section of models that load pretrained weights or embeddings."""

    trust_remote_code: bool = False
    """Whether Python code in the pretrained model's folder may run. Such code can do anything that you can do on this
    machine: set true only for a model whose code you have read."""
    revision: Revision | None = None
    """Version of the pretrained model on the hub: a branch, a tag or the hash of a commit; null for the newest. Refused
    for a model in a folder, which has no versions."""

    @property
    def source(self) -> PretrainedName | None:
        """The pretrained model that is loaded; None if there is none."""
        return None

    def named(self, pretrained: str) -> PretrainedName:
        """The name of a pretrained model with what the section says about loading it."""
        return PretrainedName(pretrained, trusts_code=self.trust_remote_code, revision=self.revision)


class PretrainedTextSection(PretrainedSection):
    """The same for models that are pretrained as a whole and read what their own tokenizer makes of texts."""

    pretrained: str

    @property
    def source(self) -> PretrainedName:
        return self.named(self.pretrained)

    @property
    def tokenizer_source(self) -> str:
        return self.source
