from __future__ import annotations

import pytest


def test_the_table_is_printed_and_written(call, copy):
    call("eval-ood", "copy", "--device", "cpu")
    code, output, _ = call("privacy", "copy", "--delta", "1e-4", "--device", "cpu")
    assert code == 0
    lines = output.splitlines()
    assert lines[0].strip() == "copy, δ = 0.0001"
    assert [line.split()[0] for line in lines[2:5]] == ["0", "0.5", "1"]
    assert lines[2].split()[-3:] == ["∞"] * 3
    rows = copy.read_table("privacy")
    assert len(rows) == 9
    assert f"{rows['value'].iloc[-1]:.4f}" in lines[4]
    assert "useless as a promise" in output
    assert lines[-1] == "written to copy/privacy.csv"
    assert max(map(len, lines[:5])) <= 80


@pytest.mark.parametrize("delta", ["0", "1", "-1e-5"])
def test_a_delta_that_is_no_probability_is_refused(delta, call, copy):
    code, _, error = call("privacy", "copy", "--delta", delta)
    assert code == 2
    assert error.startswith(f"error: --delta {float(delta):g}: expected a probability between 0 and 1")


def test_a_run_without_an_evaluation_is_refused_before_anything_is_computed(call, copy):
    code, _, error = call("privacy", "copy")
    assert code == 2
    assert "run `cudt eval-ood copy --perturbation gaussian`" in error
    assert not (copy.path / "privacy.csv").exists()
