"""The colours and markers of lines: by objective, by variant of an objective, and by the value of a
setting.
"""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib import colors

from cudt.report import objectives

#: For several variants of one objective.
MARKERS = "os^Dvxp*"
#: More bands than these overlap to one grey patch.
MOST_BANDS = 3
#: Black, for constraints that a model does not keep: the colours of cudt's objectives are taken.
FAILED_COLOR = "#000000"
#: Orange of the same palette, for the descent rate α that a recipe asks for.
ASKED_COLOR = "#E69F00"

#: The metric of the noisy input itself, which a denoiser should improve.
NOISY_INPUT: dict[str, Any] = {"color": "0.45", "linestyle": ":", "linewidth": 1.4}


def ordered_styles(count: int) -> list[dict[str, Any]]:
    """Styles for values that have an order: from light to dark, so that a print in grey keeps
    it.
    """
    shades = matplotlib.colormaps["cividis_r"](np.linspace(0.12, 1, count) if count > 1 else [1.0])
    return [
        {"color": colors.to_hex(shade), "marker": MARKERS[i % len(MARKERS)]}
        for i, shade in enumerate(shades)
    ]


def variant_style(objective: str, index: int, count: int) -> dict[str, Any]:
    """The style of one of `count` variants of an objective: a shade of its colour, and a marker of
    its own.
    """
    style = objectives.style(objective)
    if count > 1:
        paler = 0.6 * index / (count - 1)
        red, green, blue = (part + (1 - part) * paler for part in colors.to_rgb(style["color"]))
        style["color"] = colors.to_hex((red, green, blue))
        style["marker"] = MARKERS[index % len(MARKERS)]
    return style
