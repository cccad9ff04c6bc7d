"""Shared by the scripts that convert weights: finding the file of weights that a Python package
carries.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def find(source: str, suffix: str) -> Path:
    """The file itself, or the one with a suffix in an installed package."""
    if Path(source).is_file():
        return Path(source)
    package = importlib.util.find_spec(source) if source.isidentifier() else None
    if package is None or not package.submodule_search_locations:
        sys.exit(f"'{source}' is neither a file nor an installed package")
    files = sorted(Path(package.submodule_search_locations[0]).rglob(f"*{suffix}"))
    if len(files) != 1:
        sys.exit(f"package '{source}' holds {len(files)} {suffix} files, not one")
    return files[0]
