"""training.precision: bf16 on the CPU."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cudt.runs.run import Run
from cudt.training import launch
from cudt.utils.errors import DataWarning
from tests.cases import Case, write_data
from tests.conftest import quiet

#: Of a number in bf16, which has eight bits.
ROUNDING = 2**-8


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


@pytest.fixture(autouse=True)
def slow_cpus_are_no_matter() -> None:
    warnings.simplefilter("ignore", DataWarning)


def case(precision: str, *more: tuple[str, object]) -> Case:
    return Case(
        "bert",
        "text",
        "log slack",
        (("training.precision", precision), ("training.log_every", 1), *more),
    )


def losses(run: Run) -> list[float]:
    history = run.read_table("history")
    return history[history["name"] == "loss"]["value"].tolist()


@pytest.mark.parametrize("model", ["bert", "unrolled"])
def test_a_run_in_bf16_is_close_to_fp32_and_its_weights_are_fp32(root, tmp_path, model):
    cases = [Case(model, "text", "log slack", case(one).changes) for one in ("fp32", "bf16")]
    fp32, bf16 = (launch.train(one.recipe(root), tmp_path, "cpu", root, quiet()) for one in cases)
    assert (fp32.info().autocast, bf16.info().autocast) == ("no", "bf16")
    assert losses(bf16) == pytest.approx(losses(fp32), rel=8 * ROUNDING)
    assert losses(bf16) != losses(fp32)
    weights = load_file(bf16.weights_file("last"))
    assert {weight.dtype for weight in weights.values() if weight.is_floating_point()} == {
        torch.float32
    }


def test_it_computes_in_bf16_and_validates_in_fp32(root, tmp_path, monkeypatch):
    seen: dict[bool, set[torch.dtype]] = {True: set(), False: set()}
    linear = torch.nn.functional.linear

    def watched(*given: torch.Tensor) -> torch.Tensor:
        made = linear(*given)
        seen[torch.is_grad_enabled()].add(made.dtype)
        return made

    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    launch.train(case("bf16").recipe(root), tmp_path, "cpu", root, quiet())
    assert seen == {True: {torch.bfloat16}, False: {torch.float32}}
