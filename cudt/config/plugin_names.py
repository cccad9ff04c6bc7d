"""Keys of a recipe whose values are names of plug-ins: types that accept only plug-ins that
exist.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from cudt.config import registry
from cudt.utils.shown import shown


class PluginName:
    """Marks a text as the name of a plug-in: a file that comes with cudt, or the import path of a
    module.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    @property
    def names(self) -> list[str]:
        """The allowed names of plug-ins that come with cudt."""
        return registry.names(self.kind)

    @property
    def in_words(self) -> str:
        """The allowed names, in a sentence."""
        return f"one of {', '.join(repr(name) for name in self.names)} or an import path"

    def check(self, name: str) -> str:
        """The name, if there is such a plug-in."""
        if registry.problem(self.kind, name):
            raise ValueError(registry.problem(self.kind, name, self.names))
        return name

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))


class TrainingNoise(PluginName):
    """Marks a text as the name of a noise that models can be trained with: it is added to
    embeddings or pixels.
    """

    def __init__(self) -> None:
        super().__init__("noise")

    @property
    def names(self) -> list[str]:
        return [name for name in registry.names("noise") if _is_added(name)]

    def check(self, name: str) -> str:
        super().check(name)
        if not _is_added(name):
            raise ValueError(
                f"{shown(name)} is applied to texts; train on noise that is added to embeddings "
                "or pixels"
            )
        return name


def _is_added(noise: str) -> bool:
    return registry.load("noise", noise).NOISE.is_added


ObjectiveName = Annotated[str, PluginName("objective")]
DualOptimizerName = Annotated[str, PluginName("dual optimizer")]
NoiseName = Annotated[str, PluginName("noise")]
TrainingNoiseName = Annotated[str, TrainingNoise()]
