from __future__ import annotations

import pytest

from cudt.report import objectives

PLUG_IN = """
class Tempered:
    is_constrained = True

OBJECTIVE = Tempered
"""


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """An objective outside cudt, by its import path."""
    (tmp_path / "outside_objectives").mkdir()
    (tmp_path / "outside_objectives" / "tempered.py").write_text(PLUG_IN)
    (tmp_path / "outside_objectives" / "broken.py").write_text("import a_package_that_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    return "outside_objectives.tempered"


def test_the_objectives_of_cudt_have_their_own_labels_and_styles():
    names = ["constrained", "erm", "supervised"]
    assert [objectives.label(name) for name in names] == names
    assert [objectives.is_constrained(name) for name in names] == [True, False, False]
    assert [objectives.style(name)["linestyle"] for name in names] == ["-", "--", ":"]


def test_an_objective_from_outside_has_the_last_part_of_its_name_and_a_spare_style(outside):
    assert objectives.label(outside) == "tempered"
    assert objectives.is_constrained(outside)
    assert {"color", "linestyle", "marker"} == set(objectives.style(outside))


@pytest.mark.parametrize("name", ["nobody.has_this", "outside_objectives.broken", "unheard_of"])
def test_an_objective_that_is_not_installed_has_a_label_and_a_style_too(name, outside):
    assert objectives.label(name) == name.split(".")[-1]
    assert not objectives.is_constrained(name)
    own = [objectives.style(known)["color"] for known in ("constrained", "erm", "supervised")]
    assert objectives.style(name)["color"] not in own
    assert objectives.style(name) == objectives.style(name)


def test_constrained_objectives_come_first_then_the_baseline(outside):
    names = ["supervised", "another", "erm", outside, "constrained", "erm"]
    assert objectives.in_order(names) == ["constrained", outside, "erm", "another", "supervised"]
