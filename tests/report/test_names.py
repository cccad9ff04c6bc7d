"""What groups are called: by what sets them apart, never by a hash."""

from __future__ import annotations

from cudt.report.collect import collect
from cudt.report.names import labels
from tests.report import make_run

CURVE = {0.0: 0.9}


def test_a_single_variant_is_called_by_its_objective(trained_run, tmp_path):
    for seed in (0, 1):
        make_run(trained_run, tmp_path, CURVE, seed=seed)
    make_run(trained_run, tmp_path, CURVE, objective="erm")
    assert [*labels(collect([tmp_path]).runs).values()] == ["constrained", "erm"]


def test_several_variants_are_called_by_the_settings_that_differ_and_never_by_a_hash(
    trained_run, tmp_path
):
    for alpha in (0.1, 0.3):
        make_run(trained_run, tmp_path / "a", CURVE, overrides=[f"descent.alpha={alpha}"])
    make_run(trained_run, tmp_path / "b", CURVE, name="other")
    runs = collect([tmp_path]).runs
    named = labels(runs)
    assert sorted(named.values()) == ["constrained", "constrained α=0.1", "constrained α=0.3"]
    assert named[next(run for run in runs if run.recipe == "other").group] == "constrained"
    assert not any(run.variant in name for run in runs for name in named.values())


def test_settings_of_constraints_are_no_part_of_the_name_of_erm(trained_run, tmp_path):
    for alpha, rate in ((0.1, 0.01), (0.3, 0.02)):
        overrides = [f"descent.alpha={alpha}", f"training.learning_rate={rate}"]
        make_run(trained_run, tmp_path / "a", CURVE, objective="erm", overrides=overrides)
    assert {*labels(collect([tmp_path / "a"]).runs).values()} == {"erm η₁=0.01", "erm η₁=0.02"}
    # Where nothing else sets runs apart, they are still better than numbers.
    for alpha in (0.1, 0.3):
        make_run(
            trained_run,
            tmp_path / "b",
            CURVE,
            objective="erm",
            overrides=[f"descent.alpha={alpha}"],
        )
    assert {*labels(collect([tmp_path / "b"]).runs).values()} == {"erm α=0.1", "erm α=0.3"}


def test_kinds_of_constraints_are_named_in_words_and_the_papers_kind_by_nothing(
    trained_run, tmp_path
):
    for overrides in ([], ["descent.form=ladder"], ["descent.gradient=proxy"]):
        make_run(trained_run, tmp_path / "a", CURVE, overrides=overrides)
    expected = {"constrained", "constrained (ladder)", "constrained (proxy)"}
    assert {*labels(collect([tmp_path / "a"]).runs).values()} == expected
    make_run(
        trained_run, tmp_path / "a", CURVE, overrides=["descent.form=ladder", "descent.alpha=0.3"]
    )
    assert "constrained (ladder) α=0.3" in labels(collect([tmp_path / "a"]).runs).values()
    # Of one kind only, the kind sets nothing apart.
    make_run(trained_run, tmp_path / "b", CURVE, overrides=["descent.form=ladder"])
    assert {*labels(collect([tmp_path / "b"]).runs).values()} == {"constrained"}
