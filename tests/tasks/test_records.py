from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cudt.errors import UserError
from cudt.tasks import _records
from cudt.tasks._records import Columns, HubSet, Records, find_files, read_files

TEXT = Columns(("text",), "label")
PAIR = Columns(("premise", "hypothesis"), "label")


def read(folder: Path, name: str, content: bytes | str, columns: Columns = TEXT) -> Records:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_files([path], columns)


def told(folder: Path, name: str, content: bytes | str, columns: Columns = TEXT) -> str:
    """What is said about a bad file, behind its name; always one line."""
    with pytest.raises(UserError) as error:
        read(folder, name, content, columns)
    message = str(error.value)
    assert message.startswith(f"{folder / name}")
    assert "\n" not in message
    return message.removeprefix(f"{folder / name}")


def parquet(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


# ---------------------------------------------------------------- every kind of file

ROWS = [{"text": 'a "good" film, truly', "label": 1}, {"text": "two\nlines", "label": 0}, {"text": "", "label": 1}]

FILES: dict[str, Callable[[], bytes]] = {
    "x.csv": lambda: pd.DataFrame(ROWS).to_csv(index=False).encode(),
    "x.CSV": lambda: pd.DataFrame(ROWS).to_csv(index=False).encode(),
    "x.tsv": lambda: pd.DataFrame(ROWS).to_csv(index=False, sep="\t").encode(),
    "x.json": lambda: json.dumps(ROWS, indent=2).encode(),
    "x.jsonl": lambda: "\n".join(json.dumps(row) for row in ROWS).encode(),
    "x.parquet": lambda: parquet(text=[row["text"] for row in ROWS], label=[row["label"] for row in ROWS]),
}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_gives_texts_as_they_are_and_labels(name, tmp_path):
    records = read(tmp_path, name, FILES[name]())
    assert records.texts == [(row["text"],) for row in ROWS]
    assert records.labels == [1, 0, 1]
    assert len(records) == 3


@pytest.mark.parametrize("name", [name for name in FILES if name != "x.parquet"])
def test_a_byte_order_mark_is_no_part_of_the_content(name, tmp_path):
    assert len(read(tmp_path, name, b"\xef\xbb\xbf" + FILES[name]())) == 3


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_may_end_in_any_way_and_be_blank(end, tmp_path):
    records = read(tmp_path, "x.csv", end.join(["text,label", "one,1", "", "two,0", ""]))
    assert records.texts == [("one",), ("two",)]
    if end != "\r":
        lines = ['{"text": "one", "label": 1}', "", '{"text": "two", "label": 0}', ""]
        assert read(tmp_path, "x.jsonl", end.join(lines)).texts == records.texts


def test_json_lines_end_at_line_feeds_alone(tmp_path):
    # Both are spaces within a JSON text, but ends of lines to str.splitlines.
    text = "one\u2028two\x85three"
    assert read(tmp_path, "x.jsonl", json.dumps({"text": text, "label": 0}, ensure_ascii=False)).texts == [(text,)]


@pytest.mark.parametrize("word", ["NA", "null", "nan", "None", "N/A", "", " ", "1", "1e5", "TRUE", "#N/A"])
def test_words_that_tables_take_for_gaps_or_numbers_stay_words(word, tmp_path):
    records = read(tmp_path, "x.csv", f"text,label\n{word},null\nx,NA\n")
    assert records.texts[0] == (word,)
    assert records.labels == ["null", "NA"]


def test_a_text_may_be_longer_than_the_csv_module_thinks(tmp_path):
    text = "word " * 100_000
    assert read(tmp_path, "x.csv", f"text,label\n{text},1\n").texts == [(text,)]


def test_a_pair_has_its_texts_in_the_order_of_the_columns(tmp_path):
    records = read(tmp_path, "x.csv", "hypothesis,label,premise,more\nh,0,p,?\n", PAIR)
    assert records.texts == [("p", "h")]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([1, 0], [1, 0]),
        ([1.0, -1.0], [1, -1]),
        (["good", "bad"], ["good", "bad"]),
        (["1", "-2"], [1, -2]),
        (["01", " 1e5 "], ["01", "1e5"]),
        ([True, False], [1, 0]),
        (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        (pa.array([3, 2], pa.uint8()), [3, 2]),
    ],
)
def test_labels_are_words_or_whole_numbers(values, labels, tmp_path):
    records = read(tmp_path, "x.parquet", parquet(text=["one", "two"], label=values))
    assert records.labels == labels
    assert [type(label) for label in records.labels] == [str if isinstance(labels[0], str) else int] * 2


def test_a_column_that_pandas_kept_as_its_index_is_a_column(tmp_path):
    path = tmp_path / "x.parquet"
    pd.DataFrame({"text": ["one", "two"], "label": ["a", "b"]}).set_index("label").to_parquet(path)
    assert read_files([path], TEXT).labels == ["a", "b"]


# ---------------------------------------------------------------- several files


def test_several_files_are_read_in_order_and_each_row_knows_its_place(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\none,1\ntwo,0\n")
    (tmp_path / "b.jsonl").write_text('{"label": 1, "text": "three"}\n')
    records = read_files([tmp_path / "a.csv", tmp_path / "b.jsonl"], TEXT)
    assert records.texts == [("one",), ("two",), ("three",)]
    assert records.sources == [(str(tmp_path / "a.csv"), 2), (str(tmp_path / "b.jsonl"), 1)]
    places = [records.place(row) for row in range(3)]
    assert places == [f"{tmp_path}/a.csv, row 1", f"{tmp_path}/a.csv, row 2", f"{tmp_path}/b.jsonl, row 1"]
    with pytest.raises(IndexError):
        records.place(3)


def test_a_bad_row_is_counted_within_its_own_file(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\none,1\ntwo,0\n")
    (tmp_path / "b.csv").write_text("text,label\nthree,1\nfour,\n")
    with pytest.raises(UserError, match=r"b\.csv, row 2: column 'label' is empty"):
        read_files([tmp_path / "a.csv", tmp_path / "b.csv"], TEXT)


# ---------------------------------------------------------------- bad files


def test_a_missing_column_is_told_with_the_nearest_and_all_there_are(tmp_path):
    content = "txet,label,id\none,1,7\n"
    assert told(tmp_path, "x.csv", content) == ": no column 'text'; did you mean 'txet'? its columns: txet, label, id"
    content = "review,stars\none,1\n"
    assert told(tmp_path, "x.csv", content) == ": no column 'text'; its columns: review, stars"
    content = "premise,label\none,1\n"
    assert told(tmp_path, "x.csv", content, PAIR) == ": no column 'hypothesis'; its columns: premise, label"


def test_a_column_that_is_there_twice_is_not_guessed_at(tmp_path):
    assert told(tmp_path, "x.csv", "text,text,label\na,b,1\n") == ": more than one column is called 'text'"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"label": 1}', "column 'text' is empty"),
        ('{"text": null, "label": 1}', "column 'text' is empty"),
        ('{"text": 3.5, "label": 1}', "column 'text' holds 3.5, not a text"),
        ('{"text": ["a", "b"], "label": 1}', "column 'text' holds ['a', 'b'], not a text"),
        ('{"text": {}, "label": 1}', "column 'text' holds {}, not a text"),
        # An emoji that was cut in two; no tokenizer takes it.
        ('{"text": "so \\ud83d", "label": 1}', "column 'text' holds half a character ('\\ud83d'), not a text"),
        ('{"text": "a"}', "column 'label' is empty"),
        ('{"text": "a", "label": null}', "column 'label' is empty"),
        ('{"text": "a", "label": ""}', "column 'label' is empty"),
        ('{"text": "a", "label": NaN}', "column 'label' is empty"),
        ('{"text": "a", "label": 0.5}', "column 'label' holds 0.5; a label is a word or a whole number"),
        ('{"text": "a", "label": Infinity}', "column 'label' holds inf; a label is a word or a whole number"),
        ('{"text": "a", "label": [1, 2]}', "column 'label' holds [1, 2]; a label is a word or a whole number"),
    ],
)
def test_a_cell_that_cannot_be_used_is_told_with_its_row(line, message, tmp_path):
    good = '{"text": "fine", "label": 1}\n'
    assert told(tmp_path, "x.jsonl", good + line) == f", row 2: {message}"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a", None], "label": [1, 0]}, "row 2: column 'text' is empty"),
        ({"text": [["a", "b"], []], "label": [1, 0]}, "row 1: column 'text' holds array("),
        ({"text": [b"a", b"b"], "label": [1, 0]}, "row 1: column 'text' holds b'a', not a text"),
        ({"text": ["a", "b"], "label": [1, None]}, "row 2: column 'label' is empty"),
        ({"text": ["a", "b"], "label": [1.0, 1.5]}, "row 2: column 'label' holds 1.5;"),
        ({"text": ["a", "b"], "label": [[1, 2], [0, 3]]}, "row 1: column 'label' holds array([1, 2]);"),
    ],
)
def test_a_cell_of_a_parquet_file_that_cannot_be_used_is_told_with_its_row(columns, message, tmp_path):
    assert told(tmp_path, "x.parquet", parquet(**columns)).startswith(f", {message}")


@pytest.mark.parametrize("missing", ["text", "label"])
def test_gaps_in_the_newer_column_types_of_pandas_are_gaps(missing, tmp_path):
    path = tmp_path / "x.parquet"
    frame = pd.DataFrame({"text": pd.array(["a", "b"], "string"), "label": pd.array([1, 0], "Int64")})
    frame.loc[1, missing] = pd.NA
    frame.to_parquet(path)
    with pytest.raises(UserError, match=f"row 2: column '{missing}' is empty"):
        read_files([path], TEXT)


def test_a_long_value_is_told_in_short(tmp_path):
    line = json.dumps({"text": list(range(10_000)), "label": 1})
    assert len(told(tmp_path, "x.jsonl", line)) < 100


@pytest.mark.parametrize(
    ("content", "message"),
    [
        # A comma without quotes. pandas would take the first cell of each row for an index, without a word.
        ("text,label\na,b,1\nc,d,0\n", ", line 2: not 2 cells but 3"),
        ("text,label\na,1\nc,d,0\n", ", line 3: not 2 cells but 3"),
        ("text,label\na,1,\n", ", line 2: not 2 cells but 3"),
        ("label,text\n1,a\n\n0\n", ", line 4: not 2 cells but 1"),
        ('text,label\n"a,1\nb,0\n', ", line 3: unexpected end of data (a quote left open"),
        ('text,label\na,1\n"b" c,0\n', ", line 3: ',' expected after '\"' (a quote left open"),
        ('text,label\n"two\nlines",1\na\n', ", line 4: not 2 cells but 1"),
        ("", ": empty"),
        ("\n\n", ": empty"),
    ],
)
def test_a_ragged_or_broken_table_is_told_with_its_line(content, message, tmp_path):
    assert told(tmp_path, "x.csv", content).startswith(message)


def test_a_table_with_a_header_alone_has_no_rows(tmp_path):
    records = read(tmp_path, "x.csv", "text,label\n")
    assert len(records) == 0
    assert records.sources == [(str(tmp_path / "x.csv"), 0)]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.json", "x.jsonl"])
def test_a_file_that_is_not_utf8_is_told_with_line_and_byte(name, mark, tmp_path):
    content = mark + "text,label\ngut,1\nschön,1\n".encode("latin-1")
    assert told(tmp_path, name, content) == ", line 3: not UTF-8 (byte 0xf6); convert the file to UTF-8"


def test_another_encoding_is_told_at_its_first_line(tmp_path):
    assert told(tmp_path, "x.csv", "text,label\na,1\n".encode("utf-16")).startswith(", line 1: not UTF-8 (byte 0xff)")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "x.jsonl",
            '{"text": "a", "label": 1}\n\n{"text": "b", "label"}',
            ", line 3: not JSON (Expecting ':' delimiter",
        ),
        ("x.jsonl", '{"text": "a", "label": 1}\n["b", 1]', ", line 2: not a JSON object"),
        ("x.jsonl", "[" * 200_000, ", line 1: not JSON ("),
        ("x.jsonl", '{"text": "a", "label": ' + "1" * 5000 + "}", ", line 1: not JSON ("),
        ("x.jsonl", "\n\n", ": empty"),
        ("x.json", '[{"text": "a", "label": 1},\n{"text"]', ": not JSON (Expecting ':' delimiter: line 2 column 8"),
        ("x.json", "", ": not JSON ("),
        ("x.json", '{"text": ["a"], "label": [1]}', ": not a list of JSON objects"),
        ("x.json", "[1]", ": not a list of JSON objects"),
        ("x.json", "[]", ": empty"),
    ],
)
def test_bad_json_is_told_with_its_line(name, content, message, tmp_path):
    assert told(tmp_path, name, content).startswith(message)


@pytest.mark.parametrize(
    "content", [b"", b"junk", parquet(text=["a"], label=[1])[:-20], b"PAR1" + b"\0" * 50 + b"PAR1"]
)
def test_a_damaged_parquet_file_is_told(content, tmp_path):
    assert told(tmp_path, "x.parquet", content).startswith(": damaged, or not a parquet file (")


@pytest.mark.parametrize("name", ["x.txt", "x", "x.csv.gz"])
def test_an_unknown_kind_of_file_is_told_with_the_known_ones(name, tmp_path):
    message = ": unknown kind of file; known: .parquet, .csv, .tsv, .jsonl, .json"
    assert told(tmp_path, name, "text,label\na,1\n") == message


# ---------------------------------------------------------------- where files are


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The current folder, with some files in it and others below its data root `root [1]`."""
    for name in ("own.csv", "both.csv", "root [1]/both.csv", "root [1]/part-2.csv", "root [1]/part-1.csv"):
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
def test_files_are_looked_for_below_the_data_root_and_then_here(pattern, found, here):
    made = find_files(pattern, Path("root [1]"))
    assert [path.resolve() for path in made] == [(here / name).resolve() for name in found]


def test_a_whole_path_is_taken_as_it_is(here):
    assert find_files(f"{here}/own.csv", Path("root [1]")) == [here / "own.csv"]
    parts = find_files(f"{here}/root*/part-*.csv", None)
    assert parts == [here / "root [1]" / "part-1.csv", here / "root [1]" / "part-2.csv"]


@pytest.mark.parametrize("pattern", ["gone.csv", "gone-*.csv", "", ".", "..", "/", "root [1]", "a**b", "a\x00b"])
def test_a_file_that_is_not_there_is_told_with_where_it_was_looked_for(pattern, here):
    with pytest.raises(UserError) as error:
        find_files(pattern, Path("root [1]"))
    assert str(error.value) == f"data file '{pattern}' does not exist, neither below root [1] nor here"


# ---------------------------------------------------------------- data sets of the hub


@pytest.fixture
def cut_off(monkeypatch, tmp_path) -> None:
    """The hub does not answer, and nothing of it is in the cache."""
    monkeypatch.setattr(_records, "is_reachable", lambda: False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.parametrize(
    ("subset", "place"),
    [
        ("plain_text", "imdb/plain_text/train-00000-of-00001.parquet"),
        ("plain_text", "imdb/plain_text/train.parquet"),
        (None, "imdb/data/train-00000-of-00001.parquet"),
        (None, "imdb/train-00000-of-00001.parquet"),
        (None, "imdb/train.parquet"),
    ],
)
def test_a_data_set_is_read_below_the_data_root_in_the_layouts_of_the_hub(subset, place, tmp_path, monkeypatch):
    monkeypatch.setattr(_records, "is_reachable", lambda: pytest.fail("the hub was asked"))
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_bytes(parquet(text=["one", "two"], label=[1, 0]))
    records = HubSet("stanfordnlp/imdb", subset).read("train", TEXT, tmp_path)
    assert records.texts == [("one",), ("two",)]
    assert records.place(1) == f"{path}, row 2"


def test_shards_are_read_in_order_and_other_splits_and_subsets_left_alone(tmp_path):
    folder = tmp_path / "glue" / "mnli"
    folder.mkdir(parents=True)
    for name in ("train-00001-of-00002", "train-00000-of-00002", "train_extra-00000-of-00001", "test-00000-of-00001"):
        (folder / f"{name}.parquet").write_bytes(parquet(text=[name], label=[0]))
    (tmp_path / "glue" / "train-00000-of-00001.parquet").write_bytes(parquet(text=["another subset"], label=[0]))
    records = HubSet("nyu-mll/glue", "mnli").read("train", TEXT, tmp_path)
    assert records.texts == [("train-00000-of-00002",), ("train-00001-of-00002",)]


def test_a_set_may_lie_below_the_data_root_as_any_kind_of_file(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "test.jsonl").write_text('{"text": "one", "label": "good"}\n')
    assert HubSet("me/mine").read("test", TEXT, tmp_path).labels == ["good"]


@pytest.mark.parametrize(
    ("subset", "folder", "only"),
    [(None, "{root}/imdb", ""), ("plain_text", "{root}/imdb/plain_text", "'plain_text/*'")],
)
def test_a_set_that_cannot_be_had_is_told_in_a_line_with_folder_and_command(subset, folder, only, tmp_path, cut_off):
    with pytest.raises(UserError) as error:
        HubSet("stanfordnlp/imdb", subset).read("train", TEXT, tmp_path)
    include = f" --include {only}" if only else ""
    assert str(error.value) == (
        f"data set 'stanfordnlp/imdb': no train-*.parquet in {folder.format(root=tmp_path)}, and the hub cannot be "
        "reached; where it can, run `hf download stanfordnlp/imdb --repo-type dataset"
        f"{include} --local-dir {tmp_path}/imdb`"
    )


def test_what_the_command_would_fetch_is_found_where_it_would_put_it(tmp_path, cut_off):
    # `--local-dir {root}/imdb` keeps the repository's folders, here plain_text/.
    with pytest.raises(UserError, match=r"--include 'plain_text/\*' --local-dir") as error:
        HubSet("stanfordnlp/imdb", "plain_text").read("train", TEXT, tmp_path)
    target = Path(str(error.value).split("--local-dir ")[1].rstrip("`"))
    (target / "plain_text").mkdir(parents=True)
    (target / "plain_text" / "train-0.parquet").write_bytes(parquet(text=["one"], label=[1]))
    assert len(HubSet("stanfordnlp/imdb", "plain_text").read("train", TEXT, tmp_path)) == 1


def test_libraries_are_offline_only_while_the_hub_is_out_of_reach(tmp_path, cut_off, monkeypatch):
    import datasets
    from huggingface_hub import constants

    seen = []

    def load(*_: Any, **__: Any) -> None:
        seen.append((datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE))
        raise ConnectionError

    monkeypatch.setattr(datasets, "load_dataset", load)
    before = (datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE)
    with pytest.raises(UserError):
        HubSet("me/none").read("train", TEXT, tmp_path)
    assert seen == [(True, True)]
    assert before == (datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE)


@pytest.fixture
def local_set(tmp_path, monkeypatch) -> Path:
    """A folder that `datasets` reads like a set of the hub, for what it says about good and bad ones."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train.csv").write_text("text,label\none,1\ntwo,0\n")
    return folder


@pytest.mark.parametrize("reachable", [True, False])
def test_a_set_that_datasets_has_is_read_and_its_rows_have_a_place(reachable, local_set, tmp_path, monkeypatch):
    monkeypatch.setattr(_records, "is_reachable", lambda: reachable)
    records = HubSet(str(local_set)).read("train", TEXT, tmp_path / "none")
    assert records.texts == [("one",), ("two",)]
    assert records.labels == [1, 0]
    assert records.place(1) == f"{local_set} train, row 2"


@pytest.mark.parametrize("reachable", [True, False])
def test_a_split_or_subset_that_a_set_does_not_have_is_told_and_not_the_network(
    reachable, local_set, tmp_path, monkeypatch
):
    monkeypatch.setattr(_records, "is_reachable", lambda: reachable)
    with pytest.raises(UserError, match=r'split tset: Unknown split "tset"'):
        HubSet(str(local_set)).read("tset", TEXT, tmp_path / "none")
    with pytest.raises(UserError, match="split train: BuilderConfig 'other' not found"):
        HubSet(str(local_set), "other").read("train", TEXT, tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [("set.py", b"", "Dataset scripts are no longer supported"), ("train.csv", b"\xff\xfe\x00", "An error occurred")],
)
def test_a_set_that_datasets_cannot_read_is_told_in_a_line(name, content, reason, local_set, tmp_path, monkeypatch):
    monkeypatch.setattr(_records, "is_reachable", lambda: True)
    (local_set / "train.csv").unlink()
    (local_set / name).write_bytes(content)
    with pytest.raises(UserError, match=reason) as error:
        HubSet(str(local_set)).read("train", TEXT, tmp_path / "none")
    assert "\n" not in str(error.value)


def test_an_error_that_says_nothing_is_told_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(_records, "is_reachable", lambda: True)
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: (_ for _ in ()).throw(TimeoutError()))
    with pytest.raises(UserError, match=r"^data set 'me/none', split train: TimeoutError$"):
        HubSet("me/none").read("train", TEXT, tmp_path)


# ---------------------------------------------------------------- what looks like the data but is not


def test_a_text_that_is_not_utf8_inside_a_parquet_file_is_told(tmp_path):
    texts = pa.array([b"fine", b"caf\xe9"], pa.binary()).view(pa.string())
    assert "damaged" in (message := told(tmp_path, "x.parquet", parquet(text=texts, label=[0, 1])))
    assert "1" in message.split("string index")[1]


def hub_file(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(parquet(text=[text], label=[0]))


def test_part_of_a_split_is_refused(tmp_path):
    for number in (0, 2):
        hub_file(tmp_path / "films", f"train-0000{number}-of-00003.parquet", "one")
    with pytest.raises(UserError, match="2 of 3 files like train-00000-of-00003"):
        HubSet("owner/films").read("train", TEXT, tmp_path)
    hub_file(tmp_path / "films", "train-00001-of-00003.parquet", "two")
    assert HubSet("owner/films").read("train", TEXT, tmp_path).texts == [("one",), ("two",), ("one",)]


def test_a_subset_is_not_taken_from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(_records, "is_reachable", lambda: False)
    hub_file(tmp_path / "glue", "train-00000-of-00001.parquet", "of some other task")
    with pytest.raises(UserError, match="hub cannot be reached"):
        HubSet("nyu-mll/glue", "mnli").read("train", TEXT, tmp_path)


def test_the_owners_folder_goes_before_that_of_the_bare_name(tmp_path):
    hub_file(tmp_path / "imdb", "train-00000-of-00001.parquet", "the famous one")
    assert HubSet("someone/imdb").read("train", TEXT, tmp_path).texts == [("the famous one",)]
    hub_file(tmp_path / "someone" / "imdb", "train-00000-of-00001.parquet", "someone's")
    assert HubSet("someone/imdb").read("train", TEXT, tmp_path).texts == [("someone's",)]


def test_a_set_that_the_hubs_library_loads_is_read_by_the_same_columns(tmp_path, monkeypatch):
    """The library takes a folder for a repository, so this is the way to the hub without the network."""
    monkeypatch.setattr(_records, "is_reachable", lambda: True)
    hub_file(tmp_path / "films", "train.parquet", "loaded")
    records = HubSet(str(tmp_path / "films")).read("train", TEXT, tmp_path / "elsewhere")
    assert records.texts == [("loaded",)]
    assert records.place(0).endswith("films train, row 1")


def test_a_tilde_is_ones_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x.csv").touch()
    assert find_files("~/x.csv", None) == [tmp_path / "x.csv"]
