from __future__ import annotations

import pytest

from cudt.config.differences import value_text
from cudt.report.collect import collect
from cudt.report.figures import panels, words
from tests.report import make_run
from tests.report.figures import groups_of, in_groups, variant_of

CURVE = {0.0: 1.0, 1.0: 0.8}


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ([["descent.alpha=0.3"], ["descent.alpha=0.05"]], ["constrained α=0.05", "constrained α=0.3"]),
        (
            [["descent.alpha=0.2"], ["descent.alpha=0.2", "descent.dual.learning_rate=0.03"]],
            ["constrained η₂=0.005", "constrained η₂=0.03"],
        ),
        (
            [["descent.alpha=0.3", "model.layers=5"], ["descent.alpha=0.05", "model.layers=10"]],
            ["constrained L=5, α=0.3", "constrained L=10, α=0.05"],
        ),
    ],
)
def test_variants_are_named_and_sorted_by_what_sets_them_apart(settings, names, trained_run, tmp_path):
    for overrides in settings:
        make_run(trained_run, tmp_path, CURVE, overrides=overrides)
    make_run(trained_run, tmp_path, CURVE, objective="erm")
    named = words.labels(groups_of(tmp_path), "gaussian")
    assert list(named.values()) == [f"{name} (1 seed)" for name in [*names, "erm"]]


def test_a_single_group_of_an_objective_says_its_kind_of_constraints(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE, overrides=["descent.gradient=proxy"])
    make_run(trained_run, tmp_path, CURVE, objective="erm", overrides=["descent.gradient=proxy"])
    groups = groups_of(tmp_path)
    assert [*words.labels(groups, "gaussian").values()] == ["constrained (proxy, 1 seed)", "erm (1 seed)"]
    assert [*words.labels(groups, "gaussian", counts=False).values()] == ["constrained (proxy)", "erm"]
    make_run(trained_run, tmp_path, CURVE, overrides=["descent.gradient=proxy", "descent.alpha=0.3"])
    assert "constrained α=0.3 (proxy)" in words.labels(groups_of(tmp_path), "gaussian", counts=False).values()


def test_variants_that_differ_in_many_settings_are_named_by_the_fewest_that_tell_them_apart(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE)
    many = ["descent.alpha=0.3", "model.layers=5", "training.epochs=7"]
    make_run(trained_run, tmp_path, CURVE, overrides=many)
    groups = groups_of(tmp_path)
    named = words.labels(groups, "gaussian", counts=False)
    assert sorted(named.values()) == sorted(f"constrained L={group.settings['model.layers']}" for group in groups)


def test_variants_without_a_known_difference_are_numbered(trained_run, tmp_path):
    make_run(trained_run, tmp_path / "a", CURVE, variant="aaaa")
    make_run(trained_run, tmp_path / "b", CURVE, variant="bbbb")
    groups = groups_of(tmp_path)
    assert list(words.labels(groups, "gaussian").values()) == [
        "constrained #1 (1 seed)",
        "constrained #2 (1 seed)",
    ]
    drawn = words.styles(groups).values()
    assert len({(style["color"], style["linestyle"], style["marker"]) for style in drawn}) == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.10, "0.1"),
        (3, "3"),
        (True, "yes"),
        (None, "none"),
        ("org/some-model", "some-model"),
        ((0.1, 0.2), "(0.1, 0.2)"),
    ],
)
def test_values_are_short(value, text):
    assert value_text(value) == text


def test_seeds_are_counted_for_each_objective_if_they_differ(trained_run, tmp_path):
    for seed in range(2):
        make_run(trained_run, tmp_path, CURVE, seed=seed)
    make_run(trained_run, tmp_path, CURVE, objective="erm")
    constrained, erm = groups_of(tmp_path)
    assert words.seeds_of_each([constrained, erm], "gaussian") == "2 seeds constrained, 1 seed erm"
    assert words.seeds_of_each([erm], "gaussian") == "1 seed"
    assert words.seeds_range([constrained, erm], "gaussian") == "1 to 2 seeds"


def test_dollar_signs_do_not_start_a_formula():
    _, grid = panels.panels(1, 1)
    text = grid[0, 0].set_title(words.plain("$a$"))
    assert text._preprocess_math(text.get_text()) == ("$a$", False)


def test_a_long_label_is_wrapped_at_spaces():
    name = ", ".join(f"some_long_setting_{number}=0.12345" for number in range(4))
    lines = words.legend_text(name).splitlines()
    assert 1 < len(lines) <= 3
    assert all(len(line) <= 60 for line in lines)
    assert " ".join(lines) == name
    assert words.legend_text(f"{name}, {name}").endswith("…")


@pytest.mark.parametrize("written", [None, words.short])
def test_labels_that_are_cut_stay_different(written, trained_run, tmp_path, monkeypatch):
    for alpha in (0.1, 0.2, 0.3):
        make_run(trained_run, tmp_path, CURVE, overrides=[f"descent.alpha={alpha}"])
    long = [f"{'x' * 500} {number}" for number in range(3)]
    monkeypatch.setattr(words, "variant_names", lambda objective, variants: long)
    named = words.labels(groups_of(tmp_path), "gaussian", written=written)
    assert len(set(named.values())) == 3
    assert [name[-12:] for name in named.values()] == [f" #{number} (1 seed)"[-12:] for number in (1, 2, 3)]


def test_an_objective_that_is_not_installed_has_a_label_and_a_style(trained_run, tmp_path):
    make_run(trained_run, tmp_path, CURVE)
    (run,) = collect([tmp_path]).runs
    groups = in_groups([run, variant_of(run, "other", {}, objective="my_package.tempered")])
    assert list(words.labels(groups, "gaussian").values()) == ["constrained (1 seed)", "tempered (1 seed)"]
    constrained, tempered = words.styles(groups).values()
    assert constrained["color"] != tempered["color"]
    assert words.seeds_of_each(groups, "gaussian") == "1 seed each"
