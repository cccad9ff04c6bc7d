from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cudt.report.collect import collect
from cudt.report.figures import Drawing, gain_by_depth
from cudt.report.groups import Group
from tests.report import make_scored_run
from tests.report.figures import in_groups, legend_of, variant_of

LEVELS = (0.0, 1.05, 2.1)


def make_models(trained, out: Path, depths: Sequence[int], task: str = "imdb", seeds: int = 3) -> list[Group]:
    """Models of several recipes on one task; constrained ones gain 0.025 of accuracy for each layer at high levels."""
    for depth in depths:
        for objective, gain in (("constrained", 0.025 * depth), ("supervised", 0.1), ("erm", 0.0)):
            for seed in range(seeds):
                right = [0.9, 0.5 + gain, 0.5 + gain]
                scores = {
                    level: (np.arange(200) < round(200 * share)).astype(float)
                    for level, share in zip(LEVELS, right, strict=True)
                }
                changes = {"losses": np.linspace(1, 0.5, depth).tolist(), "overrides": [f"model.layers={depth}"]}
                make_scored_run(trained, out, scores, name=f"model-{depth}", objective=objective, seed=seed, **changes)
    runs = collect([out]).runs
    return in_groups([variant_of(run, run.info.variant, {"task": {"name": task}}) for run in runs])


def drawn_from(groups: Sequence[Group]) -> list[tuple[str, Drawing]]:
    return [(plan.name, plan.draw()) for plan in gain_by_depth.FIGURE.over_recipes([groups])]


def points(axes) -> dict[str, list[list[float]]]:
    return {one.get_label(): one[0].get_xydata().tolist() for one in axes.containers}


def test_gains_are_drawn_against_depth_next_to_the_papers(trained_run, tmp_path):
    ((name, (figure, title)),) = drawn_from(make_models(trained_run, tmp_path, [2, 4]))
    assert name == "gain-by-depth-accuracy"
    mean, area = figure.axes
    gained = points(mean)
    assert [y for _, y in gained["constrained"]] == pytest.approx([0.05, 0.1])
    assert [y for _, y in gained["supervised"]] == pytest.approx([0.1, 0.1])
    # Depths have equal distances, those of the paper included.
    depths = [2, 3, 4, 5, 6, 7, 9, 24]
    assert [label.get_text() for label in mean.get_xticklabels()] == [str(depth) for depth in depths]
    assert [int(x) for x, _ in gained["constrained"]] == [depths.index(2), depths.index(4)]
    # The trapezoids of 0, g and g over two steps of 1.05.
    gained = points(area)
    assert [y for _, y in gained["constrained"]] == pytest.approx([1.05 * 1.5 * 0.05, 1.05 * 1.5 * 0.1])
    (paper,) = (values for label, values in gained.items() if label.startswith("the paper"))
    assert max(y for _, y in paper) == pytest.approx(0.101, abs=5e-4)
    assert not any(label.startswith("the paper") for label in points(mean))
    assert [axes.get_title() for axes in figure.axes] == ["imdb, γ_train = 0.4", ""]
    assert legend_of(figure)[:2] == ["constrained", "supervised"]
    assert "95 % intervals over 3 paired seeds" in title
    assert "Noise levels from 0 to 2.1" in title


def test_a_depth_with_many_points_is_wider_and_they_do_not_touch_its_neighbours(trained_run, tmp_path):
    runs = [run for group in make_models(trained_run, tmp_path, [4]) for run in group.runs]
    erm, constrained = ([run for run in runs if run.objective == name] for name in ("erm", "constrained"))
    rates = [0.01 * number for number in range(1, 13)]
    variants = [variant_of(run, f"{rate}", {"descent": {"alpha": rate}}) for rate in rates for run in constrained]
    groups = in_groups([*erm, *variants])
    ((_, (figure, _)),) = drawn_from(groups)
    mean, area = figure.axes
    positions = sorted(x for values in points(mean).values() for x, _ in values)
    assert np.diff(positions) == pytest.approx(np.full(len(positions) - 1, 0.14))
    # Depth 3 of the paper has the axis up to 1; its grey point of depth 5 is behind all of ours.
    (paper,) = (values for label, values in points(area).items() if label.startswith("the paper"))
    assert 1 < positions[0] < positions[-1] < paper[1][0]
    assert mean.get_xticks()[1] == pytest.approx(np.mean(positions))


def test_names_of_models_are_above_all_points(trained_run, tmp_path, monkeypatch):
    monkeypatch.setattr(gain_by_depth, "model_name", lambda group: "a_model_with_a_very_long_name")
    ((_, (figure, _)),) = drawn_from(make_models(trained_run, tmp_path, [2, 4]))
    figure.canvas.draw()
    for axes in figure.axes:
        names = [text for text in axes.texts if text.get_text()]
        assert {text.get_text() for text in names if text.get_color() == "0.2"} == {"a_model_with_…"}
        highest = max(segment[:, 1].max() for one in axes.containers for segment in one[2][0].get_segments())
        bottom = min(text.get_window_extent().y0 for text in names)
        assert bottom > axes.transData.transform((0, highest))[1]


def test_one_depth_is_drawn_only_next_to_the_papers(trained_run, tmp_path):
    groups = make_models(trained_run, tmp_path, [4], task="reviews")
    assert drawn_from(groups) == []
    assert len(drawn_from(make_models(trained_run, tmp_path, [4]))) == 1


def test_two_seeds_are_not_drawn(trained_run, tmp_path):
    assert drawn_from(make_models(trained_run, tmp_path, [2, 4], seeds=2)) == []
