from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from cudt.config.schema import Dual
from cudt.method.descent import LayerwiseDescent
from cudt.runs.info import TargetInfo
from cudt.training import expectations, launch, target
from cudt.utils.errors import DataWarning
from tests.conftest import quiet, tiny_recipe


def doubts(
    descent: LayerwiseDescent, monkeypatch: pytest.MonkeyPatch, erm: float | None = None, *changes: str
) -> list[str]:
    found = None if erm is None else TargetInfo(loss=erm, source="finished ERM runs of reviews-ut, seed 0")
    monkeypatch.setattr(target, "of_finished_runs", lambda recipe, out: found)
    return list(expectations.doubts(descent, tiny_recipe(*changes), None))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("alpha", "line"),
    [
        (0.1, "α = 0.1 asks layer 3 for a loss ≤ (1 − α)^L·f_0 = 0.5103, f_0 = 0.7"),
        (
            [0.1, 0.5, 0.2],
            "α from 0.1 to 0.5 asks layer 3 for a loss ≤ (1 − α_1)·…·(1 − α_L)·f_0 = 0.252, f_0 = 0.7",
        ),
    ],
)
@pytest.mark.parametrize("form", ["linear", "log", "ladder"])
def test_what_alpha_asks_of_the_last_layer(alpha, line, form):
    assert list(expectations.asked(LayerwiseDescent(3, alpha, 0.7, form=form), None)) == [line]


@pytest.mark.parametrize(("erm", "warned"), [(None, False), (0.51, False), (0.5103, False), (0.52, True)])
def test_a_warning_where_alpha_asks_for_less_than_erm_reaches(erm, warned, monkeypatch):
    # 0.7·0.9³ = 0.5103
    found = doubts(LayerwiseDescent(3, 0.1, 0.7), monkeypatch, erm)
    assert (
        found
        == [
            "descent.alpha asks the last layer for a loss of 0.5103, and ERM reaches 0.52 on validation data "
            "(finished ERM runs of reviews-ut, seed 0): lower it, or set alpha to {target_loss: auto}"
        ]
        * warned
    )


def test_the_advice_is_not_what_is_already_set(monkeypatch):
    descent = LayerwiseDescent(3, 0.1, 0.7)
    assert doubts(descent, monkeypatch, 0.52, "descent.alpha={target_loss: auto}") == []
    (line,) = doubts(descent, monkeypatch, 0.52, "descent.alpha={target_loss: 0.5103}")
    assert line.startswith("descent.alpha.target_loss asks the last layer for a loss of 0.5103, and ERM reaches 0.52 ")
    assert line.endswith(": raise it, or set alpha to {target_loss: auto}")


def stuck(**settings: Any) -> LayerwiseDescent:
    """α = 0.06, β = 5, f_0 = 0.7: layers that stay at f_0 violate their constraints by v = 0.042."""
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
def test_the_weights_of_layers_that_do_not_move_are_those_that_the_dual_steps_settle_at(settings, expected):
    descent = stuck(**settings)
    weights = descent.settled_weights()
    assert weights is not None
    assert weights[:-1].tolist() == pytest.approx([expected] * 11, abs=1e-9)
    f = torch.full((12,), 0.7)
    quick = stuck(**{**settings, "dual": Dual(optimizer=descent_optimizer(settings), learning_rate=0.05)})
    for _ in range(1500):
        quick.dual_step(f)
    assert torch.allclose(quick.effective_weights().double(), weights, rtol=0.02, atol=0.002)


def descent_optimizer(settings: dict[str, Any]) -> str:
    return settings["dual"].optimizer if "dual" in settings else "adam"


def test_on_the_ladder_the_weight_grows_with_the_distance_to_the_bound():
    weights = stuck(form="ladder").settled_weights()
    assert weights is not None
    assert weights[4].item() == pytest.approx(5 * 0.7 * (1 - 0.94**5))


@pytest.mark.parametrize(
    ("descent", "warned"),
    [
        (stuck(), True),
        (stuck(beta=50.0), False),
        (stuck(gradient="proxy"), False),
        (stuck(gradient="proxy", beta=0.5), True),
        (stuck(decay="decoupled"), False),
        (stuck(form="ladder"), False),
        (stuck(form="log"), False),
        (LayerwiseDescent(12, 0.06, 0.7), False),
        (LayerwiseDescent(1, 0.06, 0.7, resilience="decay", beta=0.1), False),
    ],
)
def test_a_warning_where_beta_and_alpha_leave_the_layers_no_weight(descent, warned, monkeypatch):
    found = doubts(descent, monkeypatch)
    assert len(found) == warned
    for line in found:
        assert line.startswith(
            f"descent.beta = {descent.beta:g} and alpha leave the layers before the last a weight of"
        )
        assert ("descent.gradient: proxy" in line) == (descent.gradient == "full")


@pytest.mark.parametrize(
    ("erm", "alpha", "advice"),
    [
        (None, "0.06", "raise beta or alpha, or set"),
        (0.6, "0.06", "raise beta, or set"),
        (0.6, "{target_loss: auto}", "raise beta, or set"),
    ],
)
def test_two_warnings_do_not_advise_to_lower_and_to_raise_alpha(erm, alpha, advice, monkeypatch):
    found = doubts(stuck(), monkeypatch, erm, f"descent.alpha={alpha}")
    assert len(found) == (2 if erm and alpha == "0.06" else 1)
    assert advice in found[-1]


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
    launch.train(tiny_recipe(objective="erm"), tmp_path / "erm", "cpu", None, quiet(), announce=said.append)
    assert said == []
