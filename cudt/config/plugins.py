"""Models, tasks, noise, objectives, dual optimisers and figures by the name that a recipe calls
them.

A built-in is listed here: its name, and where its code is. Its section, the keys of a recipe, is in
config/models.py or config/tasks.py, so that a recipe is checked without importing torch. A name
with a dot is the import path of a module outside cudt, which defines its section as `Config`:
`model: {name: my_package.my_model}`.
"""

from __future__ import annotations

import importlib
import importlib.util
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
        "causal": "cudt.models.causal",
        "dust": "cudt.models.dust",
        "encoder": "cudt.models.encoder",
        "unrolled": "cudt.models.unrolled",
        "unrolled_video": "cudt.models.unrolled",
        "vit": "cudt.models.vit",
    },
    "task": {
        "alpaca": "cudt.tasks.alpaca",
        "avenue": "cudt.tasks.video",
        "folder": "cudt.tasks.video",
        "imdb": "cudt.tasks.text",
        "mnli": "cudt.tasks.text",
        "reviews": "cudt.tasks.toys:reviews",
        "shanghaitech": "cudt.tasks.video",
        "shapes": "cudt.tasks.toys:shapes",
        "text": "cudt.tasks.text",
        "ucsd": "cudt.tasks.video",
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
_WITH = {
    "is_added": ("gaussian", "uniform"),
    "is_constrained": ("constrained",),
    "USES_GAINS": ("nupi",),
}


def names(kind: str) -> list[str]:
    """The built-ins of a kind."""
    return list(BUILT_IN[kind])


def problem(kind: str, name: str) -> str:
    """Why there is no plug-in of that name; empty if there is one."""
    if "." in name:
        if _is_module(name):
            return ""
        return f"no Python module {shown(name)}; install its package or set PYTHONPATH"
    if name in BUILT_IN[kind]:
        return ""
    hint = did_you_mean(name, names(kind)) or ";"
    return f"unknown {kind} {shown(name)}{hint} known: {', '.join(names(kind))}"


def section(kind: str, name: str) -> type[NamedSection]:
    """The section of a model or task in a recipe; built-ins are found without importing torch."""
    from cudt.config.models import MODELS
    from cudt.config.tasks import TASKS

    built_in: dict[str, type[NamedSection]] = {**(MODELS if kind == "model" else TASKS)}
    if name in built_in:
        return built_in[name]
    module = load(kind, name)
    if not hasattr(module, "Config"):
        raise UserError(f"{module.__file__} does not define `Config`, the keys of its section")
    return module.Config


def load(kind: str, name: str) -> Any:
    """The module of a plug-in, imported."""
    if why := problem(kind, name):
        raise UserError(why)
    if name in BUILT_IN[kind]:
        return importlib.import_module(BUILT_IN[kind][name].partition(":")[0])
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a module from outside can raise anything
        why = f"{type(error).__name__}: {brief(str(error), 300)}"
        raise UserError(f"{kind} {shown(name)}: importing the module failed: {why}") from error
    if not hasattr(module, DEFINES[kind]):
        raise UserError(
            f"{kind} {shown(name)}: {module.__file__} does not define `{DEFINES[kind]}`"
        )
    return module


def implementation(kind: str, name: str) -> Any:
    """What the module of a plug-in defines for its kind: `build`, `NOISE`, `OBJECTIVE` or
    `FIGURE`.
    """
    attribute = BUILT_IN[kind].get(name, "").partition(":")[2] or DEFINES[kind]
    return getattr(load(kind, name), attribute)


def has(kind: str, name: str, fact: str) -> bool:
    """Whether a plug-in has a property: noise `is_added`, an objective `is_constrained`, a dual
    optimiser `USES_GAINS`.
    """
    if name in BUILT_IN[kind]:
        return name in _WITH[fact]
    return any(
        getattr(owner, fact, False) for owner in (load(kind, name), implementation(kind, name))
    )


def _is_module(name: str) -> bool:
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    try:
        return importlib.util.find_spec(name) is not None
    except Exception:  # finding a module imports its package, which can raise anything
        return False
