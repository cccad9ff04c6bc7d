"""How the report shows an objective: its label, its line style, and whether it is constrained.

The objective's class answers. A name that is no objective, such as that of a sweep's arm, is shown
as it is, in a style that no objective of cudt uses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cudt.method.objectives import Objective, objective_class
from cudt.utils.errors import UserError

#: The objective that all others are compared with.
BASELINE = "erm"
#: The colours of Okabe and Ito's palette that no objective of cudt uses and that show on white.
SPARE_COLORS = ("#CC79A7", "#E69F00", "#56B4E9", "#000000")

#: Line styles of Matplotlib.
_STYLES: dict[str, dict[str, Any]] = {
    "erm": {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    "supervised": {"color": "#009E73", "linestyle": ":", "marker": "^"},
    "constrained": {"color": "#0072B2", "linestyle": "-", "marker": "o"},
}
#: Objectives without a style, numbered as they appear: one looks the same in all figures of a
#: report.
_without_style: dict[str, int] = {}


def is_installed(name: str) -> bool:
    """Whether this is the name of an objective that can be imported on this machine."""
    return _class(name) is not None


def label(name: str) -> str:
    """What tables and figures call an objective; of a dotted path, the last part."""
    return name.rpartition(".")[2]


def labels(names: Iterable[str]) -> dict[str, str]:
    """The label of each objective; the full name where two would share a label."""
    found = {name: label(name) for name in names}
    shared = list(found.values())
    return {name: text if shared.count(text) == 1 else name for name, text in found.items()}


def style(name: str) -> dict[str, Any]:
    """How Matplotlib draws an objective's lines: color, linestyle and marker."""
    return dict(_STYLES.get(name) or _spare_style(name))


def is_constrained(name: str) -> bool:
    """Whether runs of this objective promise to keep the constraints; no where its plug-in is not
    installed.
    """
    return getattr(_class(name), "is_constrained", False)


def in_order(names: Iterable[str]) -> list[str]:
    """Objectives, each once: the constrained ones, the baseline, then all others by name."""
    return sorted(set(names), key=lambda name: (not is_constrained(name), name != BASELINE, name))


def _class(name: str) -> type[Objective] | None:
    """The class of an objective; None where it cannot be imported on this machine."""
    try:
        return objective_class(name)
    except (UserError, ImportError):
        return None


def _spare_style(name: str) -> dict[str, Any]:
    number = _without_style.setdefault(name, len(_without_style))
    return {
        "color": SPARE_COLORS[number % len(SPARE_COLORS)],
        "linestyle": "-.",
        "marker": "Dv*X"[number % 4],
    }
