"""Shell completion of recipe names, plug-ins and run folders. Nothing heavy is imported: the shell waits."""

from __future__ import annotations

import glob
from pathlib import Path


def recipes(incomplete: str) -> list[str]:
    """Recipe names, and YAML files below what is typed."""
    from cudt.config import recipe

    return _matching(recipe.names(), incomplete) + _yaml_files(incomplete)


def searches(incomplete: str) -> list[str]:
    """Names of search files, and YAML files below what is typed."""
    from cudt.sweep import definition

    return _matching(definition.names(), incomplete) + _yaml_files(incomplete)


def objectives(incomplete: str) -> list[str]:
    """Names of objectives."""
    return _plugins("objective", incomplete)


def noises(incomplete: str) -> list[str]:
    """Names of noises."""
    return _plugins("noise", incomplete)


def trackers(incomplete: str) -> list[str]:
    """Names of Accelerate's trackers, after the last comma; written down here, because asking it takes seconds."""
    names = ["aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio", "wandb"]
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _matching(names, last)]


def run_folders(incomplete: str) -> list[str]:
    """Run folders up to three levels below what is typed, where `outputs/RECIPE/RUN` is."""
    found = [path for depth in range(3) for path in _paths(incomplete, f"*{'/*' * depth}/run.json")]
    return sorted(str(Path(path).parent) for path in found)


def _plugins(kind: str, incomplete: str) -> list[str]:
    from cudt.config import registry

    return _matching(registry.names(kind), incomplete)


def _yaml_files(incomplete: str) -> list[str]:
    return sorted(_paths(incomplete, "*.yaml"))


def _paths(incomplete: str, pattern: str) -> list[str]:
    # Not Path.glob: it would look into hidden folders (.venv, .git) too.
    return glob.glob(glob.escape(incomplete) + pattern)  # noqa: PTH207


def _matching(names: list[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
