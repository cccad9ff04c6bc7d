"""A scale: a file of recipes/reproduce that lists experiments, each a sweep and what is evaluated
afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from cudt.config import errors
from cudt.config import recipe as recipes
from cudt.config.schema import Count, CountFromZero, NoiseName, NotNegative, Positive, Section
from cudt.data.hub import DEFAULT_ROOT
from cudt.sweep import search as searches
from cudt.sweep.search import Settings, Sweep
from cudt.utils.errors import UserError
from cudt.utils.files import write_text
from cudt.utils.text import did_you_mean

#: The file, in the folder of a reproduction, that machines read when they join.
_FILE = "reproduce.json"


class Completions(Section):
    """Instructions that the evaluated runs answer."""

    instructions: str
    """A file below the data root."""
    get: str = "write it"
    """How to get the file if it is missing; FOLDER is replaced by its folder."""
    gammas: Annotated[list[NotNegative], Field(min_length=1)]
    max_new_tokens: Count = 256
    batch_size: Count = 8
    limit: Count | None = None
    """The number of instructions, from the first; all by default."""

    def file(self, data_root: Path | None) -> Path:
        return (data_root or DEFAULT_ROOT) / self.instructions


class Experiment(Section):
    """A sweep, and what is evaluated afterwards."""

    name: str
    """The table or figure that it reproduces, for `--only`; several may share a name."""
    search: str
    recipe: str | None = None
    """Overrides the recipe of the search."""
    fixed: Settings = Field(default={})
    """Settings of every run, added to those of the search."""
    hours: Positive
    """What it takes in all, on the machine of the scale."""
    evaluate: Literal["best", "all"] = "best"
    """Which runs to evaluate: the best of each arm in each setting, or all."""
    perturbations: Annotated[list[NoiseName], Field(min_length=1)] = Field(default=["gaussian"])
    samples: CountFromZero = 0
    """The number of test examples saved as pictures for each evaluated run (video)."""
    exits: bool = False
    """Whether to evaluate early exits too (classification)."""
    on: list[str] = Field(default=[])
    """Tasks or recipes whose test data the same runs are evaluated on too."""
    completions: Completions | None = None

    @cached_property
    def sweep(self) -> Sweep:
        return searches.load(self.search, self.recipe, self.fixed)


class Scale(Section):
    """A file of recipes/reproduce."""

    needs_gpu: bool = False
    """Without a GPU, the scale runs only with `--device cpu`."""
    generated: bool = False
    """Whether the command generates the data and weights, below its own folder."""
    machine: str
    """What the hours of the experiments are, and on which machine."""
    experiments: Annotated[list[Experiment], Field(min_length=1)]


def load(name_or_file: str, only: Sequence[str] = ()) -> Scale:
    """A valid scale, the cheapest experiment first; `only` those with these names, if any."""
    path = recipes.locate(name_or_file, "scale")
    scale = errors.validated(Scale, recipes.read(path, "scale"), f"scale {path.stem}")
    known = {one.name for one in scale.experiments}
    for name in only:
        if name not in known:
            hint = did_you_mean(name, known) or f"; there are {', '.join(sorted(known))}"
            raise UserError(f"scale {path.stem} has no experiment '{name}'{hint}")
    chosen = [one for one in scale.experiments if not only or one.name in only]
    return scale.model_copy(update={"experiments": sorted(chosen, key=lambda one: one.hours)})


def save(out: Path, name_or_file: str, only: Sequence[str]) -> None:
    """Write what machines that join need to know."""
    source = (
        name_or_file
        if name_or_file in recipes.names("scale")
        else str(Path(name_or_file).resolve())
    )
    write_text(out / _FILE, json.dumps({"scale": source, "only": [*only]}) + "\n")


def begun(out: Path) -> Scale:
    """What was last begun in a folder."""
    if not (out / _FILE).is_file():
        raise UserError(f"{out}: no reproduction has begun here; begin one without --join")
    values = json.loads((out / _FILE).read_text(encoding="utf-8"))
    return load(values["scale"], values["only"])
