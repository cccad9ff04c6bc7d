"""Puts the list of parts (SBOM) that `make release` writes into the wheel, as PEP 770 says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PARTS = "cudt.cdx.json"


class PartsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Other builds, such as `pip install .`, have no list."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if Path(self.root, PARTS).is_file():
            build_data.setdefault("sbom_files", []).append(PARTS)
