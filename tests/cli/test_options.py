from __future__ import annotations

import pytest

from cudt.cli.options import (
    complete_recipe,
    parse_plugins,
    parse_seeds,
    repeat_options,
    require_folder,
    split_list,
)
from cudt.utils.errors import UserError

LISTS = {
    "--seed 0 1": "--seed 0 --seed 1",
    "--seeds 0,1 2 --out 3": "--seeds 0,1 --seeds 2 --out 3",
    "imdb --objectives erm constrained --seed 0": "imdb --objectives erm --objectives constrained --seed 0",
    "--perturbation gaussian uniform outputs/x": "--perturbation gaussian --perturbation uniform outputs/x",
    "--objective json.tool": "--objective json.tool",
    "--out 1 2": "--out 1 2",
    "--seed one two": "--seed one two",
    "--seed 0 --set a=1 2": "--seed 0 --set a=1 2",
}


@pytest.mark.parametrize(("written", "parsed"), LISTS.items(), ids=LISTS)
def test_lists_are_written_out_as_repeated_options(written, parsed):
    assert repeat_options(written.split()) == parsed.split()


def test_a_list_may_be_separated_by_commas_and_holds_each_value_once():
    assert split_list(["0,1", "1", " 2 ,"]) == ["0", "1", "2"]
    assert split_list(None) == []
    assert parse_seeds(["2,1", "1"]) == [2, 1]
    assert parse_plugins("--objective", "objective", ["erm,supervised"]) == ["erm", "supervised"]


@pytest.mark.parametrize("seed", ["-1", "1.5"])
def test_seeds_are_non_negative_integers(seed):
    with pytest.raises(UserError, match=f"^--seed {seed}: expected non-negative integers"):
        parse_seeds([seed])


def test_weights_that_are_not_evaluated_yet_are_an_error_with_the_command(tmp_path):
    with pytest.raises(UserError, match=r"last' does not exist$"):
        require_folder(tmp_path / "last")
    (tmp_path / "run.json").touch()
    with pytest.raises(
        UserError, match=r"last' does not exist; `cudt eval-ood .* --weights last` creates it$"
    ):
        require_folder(tmp_path / "last")
    with pytest.raises(UserError, match=r"other' does not exist$"):
        require_folder(tmp_path / "other")


def test_recipes_are_completed_by_name_and_by_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").touch()
    assert complete_recipe("smoke-t") == ["smoke-text"]
    assert complete_recipe("mi") == ["mine.yaml"]
