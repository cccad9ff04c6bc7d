from __future__ import annotations

import math
import random
import shutil
from pathlib import Path

import pandas as pd
import pytest

from cudt.runs.examples import EXAMPLES
from cudt.runs.find import find_runs, open_run, run_for
from cudt.runs.info import FORMAT, RunInfo
from cudt.runs.run import Run, write_recipe
from cudt.runs.tables import TABLES
from cudt.utils.errors import UserError
from tests.conftest import tiny_recipe
from tests.examples import by_part


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run folder that was begun."""
    made = run_for(tiny_recipe(), tmp_path / "outputs")
    write_recipe(made)
    made.update_info(RunInfo(status="running"))
    return made


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


# ---------------------------------------------------------------- info and tables


def test_a_run_that_was_not_begun_has_no_info_and_empty_tables(tmp_path):
    run = run_for(tiny_recipe(), tmp_path)
    assert run.info() == RunInfo()
    assert list(run.read_table("ood").columns) == TABLES["ood"]
    assert run.read_table("ood").empty
    assert files(tmp_path) == []


def test_floats_in_tables_come_back_to_the_last_bit(run):
    rng = random.Random(0)
    values = [rng.uniform(-1, 1) * 10 ** rng.randint(-300, 300) for _ in range(300)]
    values += [0.1 + 0.2, 1 / 3, 5e-324, 1e22, math.nextafter(1, 2), -0.0]
    table = pd.DataFrame(
        [(step, 1, "train", 1, "loss", value) for step, value in enumerate(values)],
        columns=TABLES["history"],
    )
    run.write_table("history", table)
    assert [value.hex() for value in run.read_table("history")["value"]] == [
        value.hex() for value in values
    ]


def ood(*rows: tuple[str, float, float]) -> pd.DataFrame:
    full = [(kind, gamma, 0, "accuracy", value, 40) for kind, gamma, value in rows]
    return pd.DataFrame(full, columns=TABLES["ood"])


def test_merging_replaces_rows_with_equal_keys_and_keeps_the_rest(run):
    keys = ["perturbation", "gamma", "seed", "metric"]
    run.merge_table("ood", ood(("gaussian", 0, 0.9), ("gaussian", 0.15, 0.8)), keys)
    run.merge_table(
        "ood", ood(("gaussian", 1.65, 0.5), ("gaussian", 0.15, 0.7), ("uniform", 0.0, 0.6)), keys
    )
    merged = run.read_table("ood")
    assert list(merged.columns) == TABLES["ood"]
    assert list(merged[["perturbation", "gamma", "value"]].itertuples(index=False, name=None)) == [
        ("gaussian", 0.0, 0.9),
        ("gaussian", 0.15, 0.7),
        ("gaussian", 1.65, 0.5),
        ("uniform", 0.0, 0.6),
    ]


def test_merging_the_same_rows_twice_changes_nothing(run):
    rows = ood(("gaussian", 0.1 + 0.2, 0.9), ("gaussian", 1.0, 1 / 3))
    run.merge_table("ood", rows, ["perturbation", "gamma"])
    before = (run.path / "ood.csv").read_bytes()
    run.merge_table("ood", rows, ["perturbation", "gamma"])
    assert (run.path / "ood.csv").read_bytes() == before


def examples(*rows: tuple[float, int, str, float]) -> pd.DataFrame:
    full = [("gaussian", gamma, seed, name, 1.0, score) for gamma, seed, name, score in rows]
    return pd.DataFrame(full, columns=list(EXAMPLES))


def test_scores_of_examples_are_merged_as_tables_are_and_sorted(run):
    run.merge_examples(
        by_part(examples((0.0, 0, "b", 1 / 3), (0.0, 0, "a", 0.1 + 0.2), (1.0, 0, "a", 0.5))),
        ["gamma"],
    )
    run.merge_examples(by_part(examples((1.0, 0, "b", 0.25), (1.0, 0, "a", 0.75))), ["gamma"])
    table = run.read_examples()
    assert table.dtypes.astype(str).to_dict() == {
        **EXAMPLES,
        "perturbation": table["id"].dtype,
        "id": table["id"].dtype,
    }
    assert list(table[["gamma", "id", "score"]].itertuples(index=False, name=None)) == [
        (0.0, "a", 0.1 + 0.2),
        (0.0, "b", 1 / 3),
        (1.0, "a", 0.75),
        (1.0, "b", 0.25),
    ]
    before = (run.path / "examples.parquet").read_bytes()
    run.merge_examples(by_part(examples((1.0, 0, "a", 0.75), (1.0, 0, "b", 0.25))), ["gamma"])
    assert (run.path / "examples.parquet").read_bytes() == before
    assert files(run.path) == ["checksums.json", "examples.parquet", "recipe.yaml", "run.json"]


def test_scores_of_examples_are_read_for_one_kind_of_noise(run):
    both = [
        examples((0.0, 0, "a", score)).assign(perturbation=kind)
        for kind, score in (("uniform", 1), ("gaussian", 0))
    ]
    run.merge_examples(by_part(pd.concat(both)), ["perturbation", "gamma"])
    assert run.read_examples("uniform")["score"].tolist() == [1]
    assert run.read_examples("discrete").empty
    assert len(run.read_examples()) == 2


@pytest.mark.parametrize("content", [b"", "columns", "half"])
def test_damaged_scores_of_examples_are_reported(run, content):
    path = run.path / "examples.parquet"
    run.merge_examples(by_part(examples((0.0, 0, "a", 0.5))), ["gamma"])
    whole = path.read_bytes()
    other = pd.DataFrame({"perturbation": ["gaussian"], "x": [1]}).to_parquet()
    path.write_bytes({"columns": other, "half": whole[: len(whole) // 2]}.get(content, content))
    with pytest.raises(UserError, match=r"examples\.parquet: damaged") as error:
        run.read_examples()
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------- opening


def test_the_results_of_other_weights_open_the_run_with_these_weights(run):
    last = run.with_weights("last")
    assert open_run(run.path, "last") == last
    with pytest.raises(UserError, match="does not exist"):
        open_run(last.results)
    last.results.mkdir()
    assert open_run(last.results) == last
    with pytest.raises(
        UserError, match=r"which reports leave out; see them with `cudt compare .*last`"
    ):
        find_runs([last.results])
    assert find_runs([run.path]) == [run.path]
    assert open_run(last.results, "best") == run
    assert open_run(run.path) == run
    assert last.shown_as == f"{run.path.name}/last"


@pytest.mark.parametrize("missing", ["recipe.yaml", "run.json"])
def test_a_folder_without_its_files_is_no_run_folder(run, missing):
    (run.path / missing).unlink()
    with pytest.raises(UserError, match="is not a run folder"):
        open_run(run.path)


@pytest.mark.parametrize("other", [0, 2, None])
def test_a_run_of_another_format_is_refused(run, other):
    run.update_info(RunInfo(format=other))
    (run.path / "recipe.yaml").write_text("in_another_format: true\n")
    reason = "without a run format" if other is None else f"in run format {other}"
    with pytest.raises(UserError, match=f"{reason}; this version reads format {FORMAT}"):
        open_run(run.path)


@pytest.mark.parametrize("content", [b"", b'{"format": 1, "sta', b"[]"])
def test_a_damaged_run_json_is_reported(run, content):
    (run.path / "run.json").write_bytes(content)
    with pytest.raises(UserError, match=r"run\.json: damaged") as error:
        open_run(run.path)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------- locking and finding


def test_a_run_has_one_writer_at_a_time(run):
    with (
        run.locked(),
        pytest.raises(UserError, match="another process is using this run"),
        run.locked(),
    ):
        pass
    with run.locked():
        pass


def test_runs_are_found_at_any_depth_each_once(run, tmp_path):
    other = tmp_path / "outputs" / "a" / "b"
    shutil.copytree(run.path, other)
    found = find_runs([tmp_path / "outputs", run.path, tmp_path])
    assert found == [other, run.path]


def test_runs_in_hidden_folders_are_unfinished_work(run, tmp_path):
    hidden = run.path.parent / ".hidden" / run.path.name
    shutil.copytree(run.path, hidden)
    assert find_runs([tmp_path]) == [run.path]
    assert find_runs([hidden]) == [hidden]
