from __future__ import annotations

from pathlib import Path

import pytest

from cudt.data import records as _records
from cudt.data.text import HubSet, find_files, read_files
from cudt.utils.errors import UserError
from tests.tasks import TEXT, parquet

# ---------------------------------------------------------------- several files


def test_several_files_are_read_in_order_and_each_row_knows_its_file(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\none,1\ntwo,0\n")
    (tmp_path / "b.jsonl").write_text('{"label": 1, "text": "three"}\n')
    records = read_files([tmp_path / "a.csv", tmp_path / "b.jsonl"], TEXT)
    assert records.texts == [("one",), ("two",), ("three",)]
    assert records.sources == [(str(tmp_path / "a.csv"), 2), (str(tmp_path / "b.jsonl"), 1)]
    found = [records.where(row) for row in range(3)]
    assert found == [
        f"{tmp_path}/a.csv, row 1",
        f"{tmp_path}/a.csv, row 2",
        f"{tmp_path}/b.jsonl, row 1",
    ]
    with pytest.raises(IndexError):
        records.where(3)


def test_a_bad_row_is_counted_within_its_own_file(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\none,1\ntwo,0\n")
    (tmp_path / "b.csv").write_text("text,label\nthree,1\nfour,\n")
    with pytest.raises(UserError, match=r"b\.csv, row 2: column 'label': expected"):
        read_files([tmp_path / "a.csv", tmp_path / "b.csv"], TEXT)


# ---------------------------------------------------------------- where files are


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The current folder, with some files in it and others below its data root `root [1]`."""
    for name in (
        "own.csv",
        "both.csv",
        "root [1]/both.csv",
        "root [1]/part-2.csv",
        "root [1]/part-1.csv",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "root [1]" / "a [v2].csv").touch()
    (tmp_path / "root [1]" / "part-3.csv").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("own.csv", ["own.csv"]),
        ("both.csv", ["root [1]/both.csv"]),
        # In order, and no folders.
        ("part-*.csv", ["root [1]/part-1.csv", "root [1]/part-2.csv"]),
        ("a [v2].csv", ["root [1]/a [v2].csv"]),
        ("../own*.csv", ["own.csv"]),
        ("root [[]1]/both.csv", ["root [1]/both.csv"]),
    ],
)
def test_files_are_searched_below_the_data_root_and_then_in_the_current_folder(
    pattern, found, here
):
    made = find_files(pattern, Path("root [1]"))
    assert [path.resolve() for path in made] == [(here / name).resolve() for name in found]


@pytest.mark.parametrize("pattern", ["gone.csv", "gone-*.csv", "", "..", "root [1]"])
def test_a_missing_file_is_reported_with_the_searched_folders(pattern, here):
    with pytest.raises(UserError) as error:
        find_files(pattern, Path("root [1]"))
    assert (
        str(error.value)
        == f"data file '{pattern}' does not exist below root [1] or the current folder"
    )


# ---------------------------------------------------------------- datasets of the hub


@pytest.fixture
def cut_off(monkeypatch, tmp_path) -> None:
    """The hub cannot be reached, and its cache is empty."""
    monkeypatch.setattr(_records, "is_reachable", lambda: False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.parametrize(
    ("subset", "file"),
    [
        ("plain_text", "imdb/plain_text/train-00000-of-00001.parquet"),
        ("plain_text", "imdb/plain_text/train.parquet"),
        (None, "imdb/data/train-00000-of-00001.parquet"),
        (None, "imdb/train-00000-of-00001.parquet"),
        (None, "imdb/train.parquet"),
    ],
)
def test_a_dataset_is_read_below_the_data_root_in_the_layouts_of_the_hub(
    subset, file, tmp_path, monkeypatch
):
    monkeypatch.setattr(_records, "is_reachable", lambda: pytest.fail("the hub was asked"))
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_bytes(parquet(text=["one", "two"], label=[1, 0]))
    records = HubSet("stanfordnlp/imdb", subset).read("train", TEXT, tmp_path)
    assert records.texts == [("one",), ("two",)]
    assert records.where(1) == f"{path}, row 2"


def test_shards_are_read_in_order_and_other_splits_and_subsets_are_ignored(tmp_path):
    folder = tmp_path / "glue" / "mnli"
    folder.mkdir(parents=True)
    for name in (
        "train-00001-of-00002",
        "train-00000-of-00002",
        "train_extra-00000-of-00001",
        "test-00000-of-00001",
    ):
        (folder / f"{name}.parquet").write_bytes(parquet(text=[name], label=[0]))
    (tmp_path / "glue" / "train-00000-of-00001.parquet").write_bytes(
        parquet(text=["another subset"], label=[0])
    )
    records = HubSet("nyu-mll/glue", "mnli").read("train", TEXT, tmp_path)
    assert records.texts == [("train-00000-of-00002",), ("train-00001-of-00002",)]


def test_a_dataset_below_the_data_root_may_have_any_file_type(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "test.jsonl").write_text('{"text": "one", "label": "good"}\n')
    assert HubSet("me/mine").read("test", TEXT, tmp_path).labels == ["good"]


def test_a_dataset_that_is_unavailable_is_reported_in_one_line_with_the_command(tmp_path, cut_off):
    with pytest.raises(UserError) as error:
        HubSet("stanfordnlp/imdb", "plain_text").read("train", TEXT, tmp_path)
    message = str(error.value)
    assert message.startswith("dataset 'stanfordnlp/imdb', split train: cannot be read (")
    assert (
        "the hub cannot be reached; with network access, run `hf download stanfordnlp/imdb "
        "--repo-type" in message
    )
    assert f"--include 'plain_text/*' --local-dir {tmp_path}/imdb`" in message
    assert "\n" not in message


@pytest.fixture
def local_set(tmp_path, monkeypatch) -> Path:
    """A folder that `datasets` reads like a dataset of the hub."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train.csv").write_text("text,label\none,1\ntwo,0\n")
    return folder


@pytest.mark.parametrize("reachable", [True, False])
def test_a_dataset_in_the_cache_is_read_and_its_rows_have_a_source(
    reachable, local_set, tmp_path, monkeypatch
):
    monkeypatch.setattr(_records, "is_reachable", lambda: reachable)
    records = HubSet(str(local_set)).read("train", TEXT, tmp_path / "none")
    assert records.texts == [("one",), ("two",)]
    assert records.labels == [1, 0]
    assert records.where(1) == f"{local_set} train, row 2"


@pytest.mark.parametrize("reachable", [True, False])
def test_a_split_or_subset_that_does_not_exist_is_not_reported_as_a_network_problem(
    reachable, local_set, tmp_path, monkeypatch
):
    monkeypatch.setattr(_records, "is_reachable", lambda: reachable)
    with pytest.raises(UserError, match=r'split tset: cannot be read \(Unknown split "tset"'):
        HubSet(str(local_set)).read("tset", TEXT, tmp_path / "none")
    with pytest.raises(
        UserError, match=r"split train: cannot be read \(BuilderConfig 'other' not found"
    ):
        HubSet(str(local_set), "other").read("train", TEXT, tmp_path / "none")


# ---------------------------------------------------------------- files that are not the data


def hub_file(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(parquet(text=[text], label=[0]))


def test_part_of_a_split_is_refused(tmp_path):
    for number in (0, 2):
        hub_file(tmp_path / "films", f"train-0000{number}-of-00003.parquet", "one")
    with pytest.raises(UserError, match="2 of 3 files like train-00000-of-00003"):
        HubSet("owner/films").read("train", TEXT, tmp_path)
    hub_file(tmp_path / "films", "train-00001-of-00003.parquet", "two")
    assert HubSet("owner/films").read("train", TEXT, tmp_path).texts == [
        ("one",),
        ("two",),
        ("one",),
    ]


def test_the_owners_folder_is_preferred_to_that_of_the_bare_name(tmp_path):
    hub_file(tmp_path / "imdb", "train-00000-of-00001.parquet", "the famous one")
    assert HubSet("someone/imdb").read("train", TEXT, tmp_path).texts == [("the famous one",)]
    hub_file(tmp_path / "someone" / "imdb", "train-00000-of-00001.parquet", "someone's")
    assert HubSet("someone/imdb").read("train", TEXT, tmp_path).texts == [("someone's",)]
