from __future__ import annotations

import itertools
import math
import shutil
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch

from cudt.config import recipe
from cudt.evaluation import privacy
from cudt.evaluation.evaluate import evaluate_ood
from cudt.evaluation.grid import Grid
from cudt.method.privacy import epsilon_at
from cudt.models.unrolled_network import UnrolledTransformer
from cudt.runs.find import open_run
from cudt.runs.run import Run
from cudt.training import launch, trained
from cudt.utils.errors import UserError
from tests.conftest import quiet, train_quietly
from tests.evaluation.conftest import untracked
from tests.pretrained import VOCABULARY, tiny_pretrained, tiny_tokenizer
from tests.shapes import write_recipe as write_video_recipe
from tests.texts import write_recipe, write_reviews


@pytest.fixture(scope="module")
def evaluated(trained_run, tmp_path_factory) -> Run:
    path = shutil.copytree(trained_run.path, tmp_path_factory.mktemp("privacy") / "run")
    run = open_run(path)
    evaluate_ood(run, Grid(noise_seeds=[0, 1]), "cpu", None, untracked)
    return run


@pytest.fixture
def run(evaluated, tmp_path) -> Run:
    return open_run(shutil.copytree(evaluated.path, tmp_path / "run"))


def write(run: Run, delta: float = 1e-5, data_root=None) -> tuple[privacy.Embeddings, pd.DataFrame]:
    privacy.check(run)
    return privacy.write_privacy(run, delta, "cpu", data_root), run.read_table("privacy")


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("seed", range(5))
def test_the_largest_distance_is_that_of_all_pairs(seed, chunk, monkeypatch):
    monkeypatch.setattr(privacy, "_CHUNK", chunk)
    table = torch.randn(17, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    # One row far from the others, so that the search may end early.
    table[3] *= 1 + 10 * (seed % 2)
    literal = max(math.dist(one, other) for one, other in itertools.combinations(table.tolist(), 2))
    assert privacy.largest_distance(table) == pytest.approx(literal, rel=1e-9)


def test_sensitivities_are_those_of_the_trained_embeddings(run):
    found, rows = write(run)
    model: Any = trained.load(run, "cpu", None).model
    table = model.words.weight.tolist()
    largest = max(math.dist(one, other) for one, other in itertools.combinations(table, 2))
    longest = max(math.hypot(*row) for row in table)
    assert found.n_rows == len(table)
    assert found.norms[-1] == pytest.approx(longest)
    # Three clauses of at most six words and two words between them.
    assert 14 <= found.longest_text <= 20
    expected = {"token": largest, "clipped token": 2 * longest, "text": math.sqrt(found.longest_text) * largest}
    assert dict(zip(rows["unit"], rows["sensitivity"], strict=True)) == pytest.approx(expected)
    assert largest <= 2 * longest


def test_epsilon_is_that_of_the_noise_and_the_metric_that_of_the_curve(run):
    _, rows = write(run, 1e-6)
    sigma_x = run.finished_info().sigma_x.evaluation
    ood = run.read_table("ood")
    accuracy = ood[ood["metric"] == "accuracy"].groupby("gamma")["value"].mean()
    assert rows["gamma"].unique().tolist() == [0, 0.5, 1]
    assert (rows["metric"] == "accuracy").all()
    for row in rows.to_dict("records"):
        assert row["sigma"] == pytest.approx(row["gamma"] * sigma_x)
        assert row["value"] == pytest.approx(accuracy[row["gamma"]])
        assert row["epsilon"] == (epsilon_at(1e-6, row["sensitivity"] / row["sigma"]) if row["gamma"] else math.inf)


def test_rows_of_another_delta_stay(run):
    _, first = write(run, 1e-5)
    _, both = write(run, 1e-3)
    assert sorted(both["delta"].unique()) == [1e-5, 1e-3]
    assert both[both["delta"] == 1e-5].reset_index(drop=True).equals(first)
    _, again = write(run, 1e-5)
    assert len(again) == len(both)


def test_a_useless_epsilon_is_called_so_with_the_noise_that_would_be_needed(run):
    found, rows = write(run)
    text = privacy.conclusion(run, found, 1e-5)
    epsilon = rows[(rows["unit"] == "token") & (rows["gamma"] == 1)]["epsilon"].item()
    assert f"ε = {privacy.epsilon_text(epsilon)} for one token: useless as a promise" in text
    assert "the highest level evaluated is γ = 1." in text
    needed = float(text.split("needs γ = ")[1].split(";")[0])
    sigma = needed * run.finished_info().sigma_x.evaluation
    assert epsilon_at(1e-5, found.largest_distance / sigma) == pytest.approx(10, rel=0.02)


@pytest.mark.parametrize(("epsilon", "text"), [(math.inf, "∞"), (1040.4, "1,040"), (57.84, "57.8"), (0.5, "0.5")])
def test_epsilon_in_words(epsilon, text):
    assert privacy.epsilon_text(epsilon) == text


def test_a_useless_epsilon_stays_so_whatever_levels_were_evaluated(run):
    evaluate_ood(run, Grid([1000.0]), "cpu", None, untracked)
    found, _ = write(run)
    text = privacy.conclusion(run, found, 1e-5)
    assert "for one token: useless as a promise. " in text
    assert "accuracy at γ = 1000 is " in text


def test_a_useful_epsilon_is_not_called_useless(run):
    found, _ = write(run)
    sigma_x = run.finished_info().sigma_x.evaluation
    # With μ = 1 at γ = 1, ε is 4.38; ε = 10 needs half of that noise.
    text = privacy.conclusion(run, replace(found, largest_distance=sigma_x), 1e-5)
    assert "useless" not in text
    assert "ε = 4.38 for one token. ε = 10, the most that is called reasonable, needs γ = 0.5;" in text


def test_an_encoder_has_the_embeddings_that_it_looks_up(tmp_path):
    write_reviews(tmp_path)
    write_recipe(tmp_path, tiny_pretrained(tmp_path / "bert"))
    run = launch.train(recipe.load(str(tmp_path / "own.yaml")), tmp_path / "outputs", "cpu", tmp_path, quiet())
    evaluate_ood(run, Grid([0.5]), "cpu", tmp_path, untracked)
    found, rows = write(run, data_root=tmp_path)
    model: Any = trained.load(run, "cpu", tmp_path).model
    table = model.encoder.get_input_embeddings().weight.double()
    assert found.n_rows == len(VOCABULARY) == len(table)
    assert found.norms[-1] == pytest.approx(table.norm(dim=1).max().item())
    assert found.largest_distance == pytest.approx(torch.cdist(table, table).max().item())
    assert len(rows) == 3


def test_added_tokens_without_an_embedding_do_not_count(tmp_path):
    write_reviews(tmp_path)
    write_recipe(tmp_path, tiny_pretrained(tmp_path / "bert"))
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<image>", "<video>"])
    tokenizer.save_pretrained(tmp_path / "bert")
    run = launch.train(recipe.load(str(tmp_path / "own.yaml")), tmp_path / "outputs", "cpu", tmp_path, quiet())
    evaluate_ood(run, Grid([0.5]), "cpu", tmp_path, untracked)
    found, _ = write(run, data_root=tmp_path)
    assert len(tokenizer) == len(VOCABULARY) + 2
    assert found.n_rows == len(VOCABULARY)


def test_a_run_that_was_not_evaluated_is_refused_with_the_command(trained_run):
    with pytest.raises(UserError, match=r"not evaluated under Gaussian noise; run `cudt eval-ood .* gaussian`$"):
        privacy.check(trained_run)


def test_a_run_on_videos_is_refused(tmp_path):
    written = write_video_recipe(tmp_path, "videos", "{name: dust, layers: 2, atoms: 16, patch: 4}")
    run = train_quietly(recipe.load(str(written)), tmp_path)
    with pytest.raises(UserError, match=r"task shapes has no tokens; .* give a run on texts$"):
        privacy.check(run)


def test_a_model_whose_embeddings_depend_on_the_position_is_refused(run, monkeypatch):
    def signal(self, batch):
        x = self.words(batch["input_ids"])
        return x + self.positions.weight[:1].sum() * torch.arange(x.shape[1]).unsqueeze(-1), batch["attention_mask"]

    monkeypatch.setattr(UnrolledTransformer, "signal", signal)
    with pytest.raises(UserError, match="does not look up one embedding for each token"):
        write(run)
