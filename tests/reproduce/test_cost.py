from __future__ import annotations

import pytest

from cudt.reproduce import cost
from tests.reproduce.scales import experiment_of, listed, scale_of, write_search
from tests.sweep.searches import FIXED, seeds

#: 2 · (10 multiplications · 5 positions · 3 layers + 7 for each of three readouts), and with one readout alone.
FORWARD, LAST_ALONE = 2 * (150 + 21), 2 * (150 + 7)


def test_training_is_three_forward_passes_an_example_and_epoch_and_judging_one(tmp_path):
    experiment = experiment_of(tmp_path)
    # Two epochs; validation after each, once at the end, and at two levels.
    updates, validations = 2 * 100 * 3, (2 + 1 + 2) * 20
    constrained = experiment.sweep.first_recipe
    assert cost.training(constrained, experiment.nominal, [0.0, 1.0]) == (updates + validations) * FORWARD
    erm = experiment.sweep.recipe({}, "erm", {})
    expected = updates * LAST_ALONE + validations * FORWARD
    assert cost.training(erm, experiment.nominal, [0.0, 1.0]) == expected


def test_evaluation_is_a_forward_pass_an_example_level_kind_and_draw(tmp_path):
    experiment = experiment_of(tmp_path, perturbations=["gaussian", "uniform"], noise_seeds=[0, 1])
    # Three levels of the recipe, and γ_train = 0.4 beside them, for each of two runs.
    assert cost.evaluation(experiment) == 2 * (2 * 4 * 2) * 30 * FORWARD
    assert cost.n_evaluations(experiment) == 2


def test_exits_and_other_data_cost_further_passes(tmp_path):
    experiment = experiment_of(tmp_path, exits=True)
    # Four levels of 30 examples twice, and 20 validation examples, for each of two runs and three data sets.
    assert cost.evaluation(experiment, n_other=2) == 2 * 3 * (2 * 4 * 30 + 20) * FORWARD


def test_other_weights_cost_another_evaluation(tmp_path):
    plain, both = (cost.evaluation(experiment_of(tmp_path, both_weights=asked)) for asked in (False, True))
    assert both == 2 * plain


@pytest.mark.parametrize(("evaluate", "count"), [("best", 4), ("all", 12), ("none", 0)])
def test_the_best_of_each_arm_in_each_setting_are_evaluated_or_all_runs(evaluate, count, tmp_path):
    arms = {"constrained": seeds(3), "erm": seeds(3, fixed={"objective": "erm"})}
    name = write_search(tmp_path, settings={"noise.gamma_train": [0.0, 0.5]}, arms=arms)
    (experiment,) = scale_of(tmp_path, listed(name, evaluate=evaluate)).experiments
    assert cost.n_evaluations(experiment) == count
    # γ_train is one of the three levels in both settings.
    assert cost.evaluation(experiment) == count * 3 * 30 * FORWARD


def test_more_layers_cost_more(tmp_path):
    fixed = {key: value for key, value in FIXED.items() if key != "model.layers"}
    name = write_search(tmp_path, fixed=fixed, settings={"model.layers": [3, 6]})
    (experiment,) = scale_of(tmp_path, listed(name)).experiments
    costs = [
        cost.training(experiment.sweep.recipe(setting, "constrained", {}), experiment.nominal, None)
        for setting in experiment.sweep.settings
    ]
    assert costs[1] == 2 * costs[0]


def test_completions_cost_their_prompts_and_what_is_written(tmp_path):
    asked = {"instructions": "mine.json", "gammas": [0.0, 1.5], "max_new_tokens": 10, "limit": 6}
    without, with_them = (
        cost.evaluation(scale_of(tmp_path, listed("smoke-llama", completions=completions)).experiments[0])
        for completions in (None, asked)
    )
    # Two runs answer six instructions twice: 5 positions and 10 tokens more, through four layers and one readout.
    assert with_them - without == pytest.approx(2 * 12 * 3 * 2 * (10 * 5 * 4 + 7))
