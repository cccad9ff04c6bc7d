"""Models, tasks, noise, objectives, dual optimisers and figures by the name that a recipe calls
them.

The section of a built-in, the keys of a recipe, is in config/models.py or config/tasks.py, so that
a recipe is checked without importing torch. A name with a dot is the import path of a module
outside cudt, which defines its section as `Config`: `model: {name: my_package.my_model}`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cudt.utils.errors import UserError
from cudt.utils.text import brief, did_you_mean, shown

if TYPE_CHECKING:
    from cudt.config.schema import NamedSection

#: What the module of a plug-in must define, by kind.
DEFINES = {
    "model": "build",
    "task": "build",
    "noise": "NOISE",
    "objective": "OBJECTIVE",
    "dual optimizer": "build",
    "figure": "FIGURE",
}
#: Where the built-ins are: a module, which defines the name above, or `module:NAME`.
BUILT_IN: dict[str, dict[str, str]] = {
    "model": {
        **{name: f"cudt.models.{name}" for name in ("causal", "dust", "encoder", "unrolled")},
        **{"unrolled_video": "cudt.models.unrolled:video", "vit": "cudt.models.vit"},
    },
    "task": {
        "alpaca": "cudt.tasks.alpaca",
        **dict.fromkeys(("imdb", "mnli", "text"), "cudt.tasks.text"),
        **dict.fromkeys(("avenue", "folder", "shanghaitech", "ucsd"), "cudt.tasks.video"),
        **{name: f"cudt.tasks.toys:{name}" for name in ("reviews", "shapes")},
    },
    "noise": {
        "discrete": "cudt.noise:DISCRETE",
        "gaussian": "cudt.noise:GAUSSIAN",
        "uniform": "cudt.noise:UNIFORM",
    },
    "objective": {
        "constrained": "cudt.method.objectives:Constrained",
        "erm": "cudt.method.objectives:Erm",
        "supervised": "cudt.method.objectives:Supervised",
    },
    "dual optimizer": {
        "adam": "cudt.method.descent:adam",
        "nupi": "cudt.method.descent:nupi",
        "sgd": "cudt.method.descent:sgd",
    },
    # A report's own are in cudt/report/figures.py.
    "figure": {},
}
#: The built-ins with a property by which recipes are checked, so that this imports no torch.
_WITH = {"is_added": ("gaussian", "uniform"), "is_constrained": ("constrained",)}


def names(kind: str) -> list[str]:
    """The built-ins of a kind."""
    return list(BUILT_IN[kind])


def check(kind: str, name: str) -> None:
    """Refuse a name that is no plug-in's; one from outside is imported."""
    if name not in BUILT_IN[kind]:
        load(kind, name)


def load(kind: str, name: str) -> Any:
    """The module of a plug-in, imported."""
    if name in BUILT_IN[kind]:
        return importlib.import_module(BUILT_IN[kind][name].partition(":")[0])
    if "." not in name:
        hint = did_you_mean(name, names(kind)) or ";"
        raise UserError(f"unknown {kind} {shown(name)}{hint} known: {', '.join(names(kind))}")
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a module from outside can raise anything
        why = f"{type(error).__name__}: {brief(str(error), 300)}"
        raise UserError(f"{kind} {shown(name)}: importing the module failed: {why}") from error
    for attribute in (DEFINES[kind], *(["Config"] if kind in ("model", "task") else [])):
        if not hasattr(module, attribute):
            raise UserError(f"{kind} {shown(name)}: the module does not define `{attribute}`")
    return module


def section(kind: str, name: str) -> type[NamedSection]:
    """The section of a model or task in a recipe; built-ins are found without importing torch."""
    from cudt.config.models import MODELS
    from cudt.config.tasks import TASKS

    built_in: dict[str, type[NamedSection]] = {**MODELS} if kind == "model" else TASKS
    return built_in[name] if name in built_in else load(kind, name).Config


def implementation(kind: str, name: str) -> Any:
    """What the module of a plug-in defines for its kind: `build`, `NOISE`, `OBJECTIVE` or
    `FIGURE`.
    """
    attribute = BUILT_IN[kind].get(name, "").partition(":")[2] or DEFINES[kind]
    return getattr(load(kind, name), attribute)


def has(kind: str, name: str, fact: str) -> bool:
    """Whether a plug-in has a property: noise `is_added`, an objective `is_constrained`."""
    if name in BUILT_IN[kind]:
        return name in _WITH[fact]
    return bool(getattr(implementation(kind, name), fact, False))
