from __future__ import annotations

import pytest

from cudt.runs.completions import CompletionSet, completion_sets, write_completions

SETS = [
    CompletionSet("alpaca_eval", 0.0, 0, 256),
    CompletionSet("alpaca_eval", 1.5, 0, 256),
    CompletionSet("alpaca_eval", 1e-05, 12, 8),
    CompletionSet("my-gamma2-seed1-tokens3", 1.0, -1, 4),
]


@pytest.mark.parametrize("one", SETS, ids=lambda one: one.name)
def test_the_name_of_a_file_says_what_its_completions_depend_on(one, tmp_path):
    write_completions(one.path(tmp_path), [])
    assert completion_sets(tmp_path) == [one]


def test_files_of_pairs_and_other_files_are_no_completions_of_the_run(tmp_path):
    for name in (f"{SETS[0].name}-against-erm-1", "notes", SETS[1].name):
        write_completions(tmp_path / "completions" / f"{name}.json", [])
    assert completion_sets(tmp_path) == [SETS[1]]
    assert completion_sets(tmp_path / "missing") == []
