from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from cudt.config.tasks import Limit
from cudt.tasks.base import SPLITS
from cudt.tasks import alpaca
from cudt.tasks.alpaca import Alpaca
from tests.instructions import build, write_instructions
from tests.pretrained import tiny_llama
from tests.tasks import parquet

REAL = os.environ.get("CUDT_DATA_ROOT")
real_data = pytest.mark.skipif(
    not REAL or not (Path(REAL) / alpaca.FILE).is_file(),
    reason="needs real data: set CUDT_DATA_ROOT to the folder that holds alpaca/alpaca_data.json",
)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> str:
    return tiny_llama(tmp_path_factory.mktemp("pretrained") / "llama")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_instructions(tmp_path_factory.mktemp("instructions")).parent


def ids(task: Alpaca) -> dict[str, list[str]]:
    return {split: [example.id for example in task.examples(split)] for split in SPLITS}


def everything(task: Alpaca) -> dict[str, list[int]]:
    """The tokens of every example by its id."""
    return {one.id: one.tokens.tolist() for split in SPLITS for one in task.examples(split)}


# ---------------------------------------------------------------- splits


def test_every_instruction_is_in_exactly_one_split(folder, pretrained):
    found = ids(build(folder, pretrained))
    assert [len(found[split]) for split in SPLITS] == [24, 8, 8]
    assert sorted(int(name) for names in found.values() for name in names) == list(range(40))


def test_the_split_depends_on_the_seed(folder, pretrained):
    one, again, other = (ids(build(folder, pretrained, data_seed=seed)) for seed in (0, 0, 1))
    assert one == again
    assert all(set(one[split]) != set(other[split]) for split in SPLITS)


def test_a_limit_removes_examples_and_changes_no_other(folder, pretrained):
    whole = build(folder, pretrained)
    few = build(folder, pretrained, limit=Limit(train=5, test=3))
    assert [len(names) for names in ids(few).values()] == [5, 8, 3]
    tokens = {example.id: example.tokens.tolist() for example in whole.examples("train")}
    assert all(tokens[example.id] == example.tokens.tolist() for example in few.examples("train"))


def test_shares_must_leave_training_data():
    with pytest.raises(ValueError, match="add up to 1 or more"):
        alpaca.Config(name="alpaca", validation_share=0.5, test_share=0.5)


# ---------------------------------------------------------------- files


def write(path: Path, rows: list[dict[str, str]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        path.write_bytes(parquet(**{name: [row[name] for row in rows] for name in rows[0]}))
    else:
        lines = [json.dumps(row) for row in rows]
        path.write_text(
            "\n".join(lines) if path.suffix == ".jsonl" else f"[{', '.join(lines)}]",
            encoding="utf-8",
        )
    return path.name


@pytest.fixture(scope="module")
def rows(folder) -> list[dict[str, str]]:
    return json.loads((folder / "own.json").read_text())


@pytest.mark.parametrize("name", ["other.jsonl", "other.csv", "other.json", "other.parquet"])
def test_every_file_type_gives_the_same_examples(name, folder, rows, pretrained, tmp_path):
    write(tmp_path / name, rows)
    assert everything(build(tmp_path, pretrained, file=name)) == everything(
        build(folder, pretrained)
    )


@pytest.mark.parametrize(
    "file", ["alpaca/alpaca_data.json", "alpaca/data/train-00000-of-00001.parquet"]
)
def test_without_a_file_the_published_dataset_is_read_below_the_data_root(
    file, folder, rows, pretrained, tmp_path
):
    write(tmp_path / file, rows)
    assert everything(build(tmp_path, pretrained, file=None)) == everything(
        build(folder, pretrained)
    )


# ---------------------------------------------------------------- fingerprints and status


def test_the_fingerprint_changes_with_data_split_and_length(folder, rows, tmp_path, pretrained):
    fingerprint = build(folder, pretrained).fingerprint(SPLITS)
    assert build(folder, pretrained).fingerprint(SPLITS) == fingerprint
    write(tmp_path / "own.json", [*rows[:-1], {**rows[-1], "output": "red"}])
    assert build(tmp_path, pretrained).fingerprint(SPLITS) != fingerprint
    for changes in (
        {"max_length": 399},
        {"data_seed": 1},
        {"limit": Limit(train=23)},
        {"test_share": 0.3},
    ):
        assert build(folder, pretrained, **changes).fingerprint(SPLITS) != fingerprint


def test_the_status_has_the_file_or_how_to_get_it(tmp_path, rows):
    (missing,) = alpaca.datasets(tmp_path)
    assert (missing.name, missing.folder, missing.parts) == (
        "tatsu-lab/alpaca",
        tmp_path / "alpaca",
        {},
    )
    assert "hf download tatsu-lab/alpaca --repo-type dataset" in missing.problem
    write(tmp_path / "alpaca" / "data" / "train-00000-of-00001.parquet", rows)
    (of_the_hub,) = alpaca.datasets(tmp_path)
    assert (of_the_hub.parts, of_the_hub.problem) == ({"train": "1 file"}, "")
    write(tmp_path / alpaca.FILE, rows)
    (there,) = alpaca.datasets(tmp_path)
    assert (there.name, there.folder) == ("tatsu-lab/alpaca", tmp_path / "alpaca")
    assert (there.parts, there.problem) == ({"train": "alpaca_data.json"}, "")


@real_data
@pytest.mark.filterwarnings("ignore::cudt.utils.errors.DataWarning")
def test_the_real_instructions_are_read_and_begin_with_the_template(pretrained):
    limit = Limit(train=100, validation=20, test=20)
    task = build(Path(str(REAL)), pretrained, file=None, limit=limit, max_length=512)
    # A few of the published instructions have no output.
    skipped = [task.notes().get(f"{split}: skipped without a response", 0) for split in ids(task)]
    assert [
        len(names) + left_out for names, left_out in zip(ids(task).values(), skipped, strict=True)
    ] == [100, 20, 20]
    assert sum(skipped) < 5
    for example in task.examples("train"):
        prompt = task.tokenizer.decode(example.tokens[1 : example.start])
        assert prompt.startswith("Below is an instruction that describes a task")
        assert prompt.endswith("### Response:\n")
        assert example.start < len(example.tokens) <= 512
    assert 2 < task.reference_loss() < 4
