from __future__ import annotations

import re

import pytest
import torch

from cudt.config import recipe as recipes
from cudt.models.assemble import assemble
from cudt.utils.errors import UserError
from tests.conftest import tiny_recipe

CPU = torch.device("cpu")


def rates(*overrides: str) -> list[float]:
    return assemble(tiny_recipe(*overrides), None, CPU).descent.rates


def test_alpha_is_a_number_a_list_or_a_target():
    assert rates("descent.alpha=0.2") == [0.2] * 3
    assert rates("descent.alpha=[0.1, 0.2, 0.3]") == [0.1, 0.2, 0.3]
    (rate, *_) = rates("descent.alpha={target_loss: 0.5}", "descent.reference=4.0")
    assert 4 * (1 - rate) ** 3 == pytest.approx(0.5)


def test_reference_is_a_number_or_the_entropy_of_the_labels():
    auto = assemble(tiny_recipe(), None, CPU)
    assert auto.descent.reference == auto.task.reference_loss()
    assert assemble(tiny_recipe("descent.reference=1.5"), None, CPU).descent.reference == 1.5


@pytest.mark.parametrize(
    ("alpha", "complaint"),
    [
        ("[0.1, 0.2]", "3 rates for a model of 3 layers, got 2"),
        ("{target_loss: 9.0}", "between 0 and the reference"),
    ],
)
def test_alpha_that_does_not_fit_the_model_is_refused(alpha, complaint):
    with pytest.raises(UserError, match=complaint):
        rates(f"descent.alpha={alpha}")


def test_training_data_of_one_class_give_no_reference():
    with pytest.raises(
        UserError, match=r"descent\.reference: 'auto' gives f_0 = .* must be above 0"
    ):
        assemble(tiny_recipe("task.train=1"), None, CPU)


def test_the_seed_draws_the_weights():
    def weights(seed: int) -> torch.Tensor:
        return next(assemble(tiny_recipe(seed=seed), None, CPU).layerwise.parameters())

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize(
    ("recipe", "override", "message"),
    [
        (
            "ucsd-dust",
            "task.size=100",
            "model.patch = 16: frames of 100×100 pixels are not a multiple",
        ),
        ("ucsd-ut", "task={name: reviews}", "model unrolled_video needs a video task"),
        (
            "ucsd-vit",
            "model.pretrained=nobody/nothing",
            "model 'nobody/nothing' is not on this machine",
        ),
        ("ucsd-vit", "task={name: reviews}", "model vit needs a video task"),
    ],
)
def test_recipes_that_cannot_work_are_refused_before_data_are_read(
    recipe, override, message, tmp_path, monkeypatch
):
    def read(*arguments):
        raise AssertionError("data were read")

    monkeypatch.setattr("cudt.models.assemble.build_task", read)
    with pytest.raises(UserError, match=re.escape(message)):
        assemble(recipes.load(recipe, [override]), tmp_path, CPU)
