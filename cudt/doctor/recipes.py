"""What each recipe is missing: data, pretrained weights, memory."""

from __future__ import annotations

import importlib.util
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cudt.doctor.diagnosis import Check, Diagnosis
from cudt.doctor.machine import free_memory
from cudt.doctor.scope import Scope
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    from cudt.config.recipe import NamedRecipe

#: Adam has two more numbers for each weight, and there is the gradient.
_COPIES_IN_TRAINING = 4
#: A data set or a model that is not on this machine.
_ABSENT = re.compile(r"((?:model|dataset) (?:'[^']*'|\w+))(?: is neither in |: no )")
#: Advice to download a model without an owner, which the hub does not have.
_NOT_ON_THE_HUB = re.compile(r"run `hf download [^/ ]+ ")
#: What the text `needs` of a recipe says if the recipe is not for a CPU.
_GPU = "a GPU"
#: The length of a list of recipes in one line.
_LINE = 90


def check(scope: Scope) -> Iterator[Diagnosis]:
    """One line for all recipes that can be trained here, and one for each thing that others miss."""
    from cudt.config import recipe as recipes

    root = scope.data_root if scope.data_root is None or scope.data_root.is_dir() else None
    ready: list[str] = []
    slow: list[str] = []
    missed: dict[str, list[str]] = {}
    needs: dict[str, str] = {}
    for name in dict.fromkeys([*scope.recipes, *recipes.names()]):
        try:
            recipe = recipes.load(name)
            needs[name] = recipe.settings.needs or ""
            missing = [*_missing(recipe, root), *_attention(recipe), *_memory(recipe, root, scope)]
        except UserError as error:
            missing = [str(error)]
        for one in missing:
            missed.setdefault(one, []).append(name)
        if not missing:
            (ready if _has_gpu(scope) or _GPU not in needs[name] else slow).append(name)
    yield from _named(missed, needs, scope)
    yield from _others(missed, scope)
    if slow:
        yield Diagnosis("note", f"for a GPU, and slow on a CPU: {', '.join(slow)}", "use a machine with a GPU")
    if ready:
        yield Diagnosis("ok", f"ready: {', '.join(ready)}")


def _named(missed: dict[str, list[str]], needs: dict[str, str], scope: Scope) -> Iterator[Diagnosis]:
    """A problem for each thing that a recipe misses that was named, with how to get it."""
    for what, names in missed.items():
        for name in (name for name in names if name in scope.recipes):
            title, _, advice = what.partition("; ")
            # The recipe says how to get it in other ways, such as `make smollm`.
            yield Diagnosis("problem", f"{name}: {title}", _joined(advice, needs.get(name, "")))


def _joined(advice: str, needs: str) -> str:
    if not needs:
        return advice
    if _NOT_ON_THE_HUB.search(advice):
        return f"the recipe needs {needs}"
    return f"{advice} (the recipe needs: {needs})".strip()


def _others(missed: dict[str, list[str]], scope: Scope) -> Iterator[Diagnosis]:
    """A line for each data set or model that recipes miss that were not named: nobody may want to train them.

    Where a line would have many names, there are several.
    """
    for what, names in missed.items():
        if others := [name for name in names if name not in scope.recipes]:
            absent = _ABSENT.match(what)
            title = f"{absent[1]} is missing" if absent else what.partition("; ")[0]
            for line in textwrap.wrap(", ".join(others), _LINE, break_on_hyphens=False):
                yield Diagnosis("note", f"{line.rstrip(',')}: {title}")
    if any(name not in scope.recipes for names in missed.values() for name in names):
        yield Diagnosis("note", "how to get them: `cudt recipes` for models, `cudt data` for data sets")


def _has_gpu(scope: Scope) -> bool:
    return scope.probe.torch().get("accelerator") not in (None, "mps")


def _missing(recipe: NamedRecipe, data_root: Path | None) -> list[str]:
    from cudt.models.needs import missing

    return missing(recipe, data_root)


def _attention(recipe: NamedRecipe) -> Iterator[str]:
    """The package that an implementation of attention needs and that cudt does not install."""
    wants_flash = getattr(recipe.settings.model, "attention", None) == "flash_attention_2"
    if wants_flash and importlib.util.find_spec("flash_attn") is None:
        yield "the package flash-attn is not installed; `pip install flash-attn`, or set model.attention to auto"


def _memory(recipe: NamedRecipe, data_root: Path | None, scope: Scope) -> Iterator[str]:
    """Whether the pretrained weights of a recipe, which are on this machine, fit into memory while they are trained."""
    from cudt.data import hub

    model = recipe.settings.model
    name = getattr(model, "pretrained", None)
    folder = None if name is None else hub.local_folder(name, data_root)
    if folder is None:
        return
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    # Adapters train few weights.
    needed = weights * (1 if getattr(model, "lora", None) else _COPIES_IN_TRAINING)
    devices = scope.probe.torch().get("devices") or []
    here = max((one["memory"] for one in devices), default=free_memory()[0])
    if needed > here:
        where = "the GPU has" if devices else "are free"
        yield (
            f"memory: training '{name}' takes more than {needed / 2**30:.0f} GB, and {here / 2**30:.0f} GB {where}; "
            "use a smaller model or a larger machine"
        )


CHECK = Check("Recipes", 70, check)
