from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from cudt.config.schema import Dual
from cudt.method.descent import LayerwiseDescent
from cudt.training import expectations, launch
from cudt.utils.errors import DataWarning
from tests.conftest import quiet, tiny_recipe


@pytest.mark.parametrize(
    ("alpha", "line"),
    [
        (0.1, "α = 0.1 asks layer 3 for a loss ≤ (1 − α)^L·f_0 = 0.5103, f_0 = 0.7"),
        (
            [0.1, 0.5, 0.2],
            "α from 0.1 to 0.5 asks layer 3 for a loss ≤ (1 − α_1)·…·(1 − α_L)·f_0 = 0.252, f_0 "
            "= 0.7",
        ),
    ],
)
@pytest.mark.parametrize("form", ["linear", "log", "ladder"])
def test_what_alpha_asks_of_the_last_layer(alpha, line, form):
    assert expectations.asked(LayerwiseDescent(3, alpha, 0.7, form=form)) == line


def stuck(**settings: Any) -> LayerwiseDescent:
    """α = 0.06, β = 5, f_0 = 0.7: layers that stay at f_0 violate their constraints by v =
    0.042."""
    return LayerwiseDescent(12, 0.06, 0.7, resilience="decay", **{"beta": 5.0, **settings})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 0.06 * 5 * 0.042),
        ({"gradient": "proxy"}, 5 * 0.042),
        ({"decay": "decoupled"}, 0.06 * 5),
        ({"decay": "decoupled", "dual": Dual(optimizer="sgd")}, 0.06 * 5 * 0.042),
        ({"form": "log"}, 0.0),
    ],
)
def test_the_weights_of_layers_that_do_not_move_are_those_that_the_dual_steps_settle_at(
    settings, expected
):
    descent = stuck(**settings)
    weights = descent.settled_weights()
    assert weights is not None
    assert weights[:-1].tolist() == pytest.approx([expected] * 11, abs=1e-9)
    f = torch.full((12,), 0.7)
    quick = stuck(
        **{**settings, "dual": Dual(optimizer=descent_optimizer(settings), learning_rate=0.05)}
    )
    for _ in range(1500):
        quick.dual_step(f)
    assert torch.allclose(quick.effective_weights().double(), weights, rtol=0.02, atol=0.002)


def descent_optimizer(settings: dict[str, Any]) -> str:
    return settings["dual"].optimizer if "dual" in settings else "adam"


@pytest.mark.parametrize(
    ("descent", "warned"),
    [
        (stuck(), True),
        (stuck(beta=50.0), False),
        (stuck(gradient="proxy"), False),
        (stuck(gradient="proxy", beta=0.5), True),
        (stuck(form="ladder"), False),
        (stuck(form="log"), False),
        (LayerwiseDescent(12, 0.06, 0.7), False),
        (LayerwiseDescent(1, 0.06, 0.7, resilience="decay", beta=0.1), False),
    ],
)
def test_a_warning_where_beta_and_alpha_leave_the_layers_no_weight(descent, warned):
    line = expectations.doubt(descent)
    assert (line is not None) == warned
    if line:
        assert line.startswith(
            f"descent.beta = {descent.beta:g} and alpha leave the layers before the last a "
            "weight of"
        )
        assert ("descent.gradient: proxy" in line) == (descent.gradient == "full")


def test_training_says_it_before_the_first_update_and_only_if_asked(tmp_path):
    weak = tiny_recipe("descent.resilience=decay", "descent.beta=0.1")
    said: list[str] = []
    with pytest.warns(DataWarning, match=r"descent\.beta = 0\.1 and alpha leave the layers"):
        launch.train(weak, tmp_path / "told", "cpu", None, quiet(), announce=said.append)
    (line,) = said
    assert line.startswith("α = 0.1 asks layer 3 for a loss ≤ (1 − α)^L·f_0 = 0.50")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launch.train(weak, tmp_path / "untold", "cpu", None, quiet())
    said.clear()
    launch.train(
        tiny_recipe(objective="erm"), tmp_path / "erm", "cpu", None, quiet(), announce=said.append
    )
    assert said == []
