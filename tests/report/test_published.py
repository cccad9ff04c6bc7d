"""Which runs count as the paper's experiments."""

from __future__ import annotations

import pytest

from cudt.report.published import is_published
from tests.report import with_info
from tests.report.test_paper_results import planted, published, ut_on_imdb

__all__ = ["planted"]


@pytest.mark.parametrize(
    "free", ["descent.alpha=0.3", "descent.dual.learning_rate=1", "noise.gamma_train=0.3"]
)
def test_what_is_searched_may_differ_from_the_recipe(free, planted):
    assert all(
        is_published(run)
        for run in ut_on_imdb(planted, free, "model.layers=5", "evaluation.gammas=0,1")
    )


def test_a_section_that_is_left_out_makes_a_run_another(planted):
    adapted = published(planted["text-constrained"], "alpaca-llama")
    assert is_published(adapted)
    assert not is_published(
        published(planted["text-constrained"], "alpaca-llama", "model.lora=null")
    )


def test_a_recipe_that_does_not_come_with_cudt_is_not_the_papers(planted):
    run = ut_on_imdb(planted)[0]
    assert is_published(run)
    assert not is_published(with_info(run, recipe="my-own"))
    assert not is_published(planted["text-constrained"])
