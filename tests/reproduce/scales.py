"""Scale files for tests: experiments of a second on the embedded reviews."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cudt.config import yaml
from cudt.reproduce import scale
from cudt.reproduce.scale import Experiment, Reproduction
from tests.sweeps import search, seeds

PAIR = {
    "constrained": seeds(1, fixed={"objective": "constrained"}),
    "erm": seeds(1, fixed={"objective": "erm"}),
}


def write_search(folder: Path, name: str = "pair", **changes: Any) -> str:
    """A search file of two runs."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.dump(search(**{"arms": PAIR, **changes})), encoding="utf-8")
    return str(path)


def listed(name: str, **changes: Any) -> dict[str, Any]:
    return {"search": name, "reproduces": "a table", "hours": 2.0, **changes}


def write_scale(folder: Path, *experiments: dict[str, Any], **changes: Any) -> Path:
    """A scale file of some experiments; by default, of `pair`."""
    values = {
        "reproduces": "nothing",
        "needs": "nothing",
        "machine": "a slow one",
        "experiments": list(experiments) or [listed(write_search(folder))],
        **changes,
    }
    path = folder / "mine.yaml"
    path.write_text(yaml.dump(values), encoding="utf-8")
    return path


def scale_of(folder: Path, *experiments: dict[str, Any], **changes: Any) -> Reproduction:
    return scale.load(str(write_scale(folder, *experiments, **changes)))


def experiment_of(folder: Path, **changes: Any) -> Experiment:
    (only,) = scale_of(folder, listed(write_search(folder), **changes)).experiments
    return only
