from __future__ import annotations

import pytest
from pydantic import ValidationError

from cudt.config.schema import Descent, Dual, Evaluation, Noise, TargetLoss, Training


@pytest.mark.parametrize("section", [Descent, Dual, Evaluation, Noise, Training])
def test_an_empty_section_is_valid(section):
    assert section.model_validate({}) == section()


@pytest.mark.parametrize("section", [Descent, Dual, Evaluation, Noise, Training])
def test_a_section_refuses_unknown_keys(section):
    with pytest.raises(ValidationError, match="extra_forbidden"):
        section.model_validate({"no_such_key": 1})


def test_a_section_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        Training().epochs = 3


@pytest.mark.parametrize(
    ("alpha", "read"),
    [
        (0, 0.0),
        (0.25, 0.25),
        ([0.1, 0.2, 0], [0.1, 0.2, 0.0]),
        ({"target_loss": 0.05}, TargetLoss(target_loss=0.05)),
    ],
)
def test_alpha_is_a_number_a_list_or_a_target(alpha, read):
    assert Descent.model_validate({"alpha": alpha}).alpha == read


@pytest.mark.parametrize(
    "values", [{"resilience": "slack"}, {"resilience": "decay"}, {"beta": 1.0}]
)
def test_resilience_and_beta_need_each_other(values):
    with pytest.raises(ValidationError, match=r"needs beta|beta has no effect"):
        Descent.model_validate(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"decay": "decoupled"},
            "decoupled has no effect with resilience: none; set resilience: decay, or remove",
        ),
        (
            {"resilience": "slack", "beta": 1, "decay": "decoupled"},
            "has no effect with resilience: slack",
        ),
        (
            {"resilience": "decay", "beta": 0.001, "decay": "decoupled"},
            "must not be negative, .* lower dual",
        ),
        (
            {"form": "ladder", "gradient": "proxy"},
            "gradient: proxy has no effect with form: ladder",
        ),
    ],
)
def test_settings_of_the_constraints_that_have_no_effect_are_refused(values, message):
    with pytest.raises(ValidationError, match=message):
        Descent.model_validate(values)


@pytest.mark.parametrize("gain", [{"proportional_gain": 1.0}, {"smoothing": 0.5}])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_only_nupi_has_gains(optimizer, gain):
    with pytest.raises(ValidationError, match=r"have no effect with optimizer '(adam|sgd)'"):
        Dual.model_validate({"optimizer": optimizer, **gain})
