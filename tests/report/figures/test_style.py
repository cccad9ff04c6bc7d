from __future__ import annotations

import matplotlib.colors

from cudt.report import objectives
from cudt.report.figures import style


def test_variants_have_shades_of_their_objective():
    shades = [style.variant_style("erm", index, 3) for index in range(3)]
    assert shades[0]["color"] == objectives.style("erm")["color"].lower()
    brightness = [sum(matplotlib.colors.to_rgb(shade["color"])) for shade in shades]
    assert brightness == sorted(brightness)
    assert {shade["linestyle"] for shade in shades} == {"--"}
    assert len({shade["marker"] for shade in shades}) == 3
    assert style.variant_style("erm", 0, 1) == objectives.style("erm")
