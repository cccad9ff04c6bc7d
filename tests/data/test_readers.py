from __future__ import annotations

import json
from collections.abc import Callable

import pandas as pd
import pyarrow as pa
import pytest

from cudt.data.text import Columns, read_files
from cudt.data.sources import reading, reason_of
from cudt.utils.errors import UserError
from tests.tasks import PAIR, TEXT, error_of, parquet, read

# ---------------------------------------------------------------- file types

ROWS = [
    {"text": 'a "good" film, truly', "label": 1},
    {"text": "two\nlines", "label": 0},
    {"text": "", "label": 1},
]

FILES: dict[str, Callable[[], bytes]] = {
    "x.csv": lambda: pd.DataFrame(ROWS).to_csv(index=False).encode(),
    "x.CSV": lambda: pd.DataFrame(ROWS).to_csv(index=False).encode(),
    "x.tsv": lambda: pd.DataFrame(ROWS).to_csv(index=False, sep="\t").encode(),
    "x.json": lambda: json.dumps(ROWS, indent=2).encode(),
    "x.jsonl": lambda: "\n".join(json.dumps(row) for row in ROWS).encode(),
    "x.parquet": lambda: parquet(
        text=[row["text"] for row in ROWS], label=[row["label"] for row in ROWS]
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_every_file_type_is_read_with_unchanged_texts_and_labels(name, tmp_path):
    records = read(tmp_path, name, FILES[name]())
    assert records.texts == [(row["text"],) for row in ROWS]
    assert records.labels == [1, 0, 1]
    assert len(records) == 3


@pytest.mark.parametrize("name", [name for name in FILES if name != "x.parquet"])
def test_a_byte_order_mark_is_not_part_of_the_content(name, tmp_path):
    assert len(read(tmp_path, name, b"\xef\xbb\xbf" + FILES[name]())) == 3


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_any_line_end_is_read_and_blank_lines_are_skipped(end, tmp_path):
    records = read(tmp_path, "x.csv", end.join(["text,label", "one,1", "", "two,0", ""]))
    assert records.texts == [("one",), ("two",)]
    if end != "\r":
        lines = ['{"text": "one", "label": 1}', "", '{"text": "two", "label": 0}', ""]
        assert read(tmp_path, "x.jsonl", end.join(lines)).texts == records.texts


def test_json_lines_end_only_at_line_feeds(tmp_path):
    # Both are spaces within a JSON text, but ends of lines to str.splitlines.
    text = "one\u2028two\x85three"
    assert read(
        tmp_path, "x.jsonl", json.dumps({"text": text, "label": 0}, ensure_ascii=False)
    ).texts == [(text,)]


@pytest.mark.parametrize("word", ["NA", "null", "nan", "None", "", " ", "1e5", "TRUE"])
def test_words_that_pandas_takes_for_gaps_or_numbers_stay_words(word, tmp_path):
    records = read(tmp_path, "x.csv", f"text,label\n{word},null\nx,NA\n")
    assert records.texts[0] == (word,)
    assert records.labels == ["null", "NA"]


def test_texts_and_labels_of_json_that_look_like_dates_or_numbers_stay_texts(tmp_path):
    rows = [
        {"text": "2020-01-02", "label": "01"},
        {"text": "3", "label": 1},
        {"text": "x", "label": True},
    ]
    for name, content in (
        ("x.json", json.dumps(rows)),
        ("x.jsonl", "\n".join(map(json.dumps, rows))),
    ):
        records = read(tmp_path, name, content)
        assert records.texts == [("2020-01-02",), ("3",), ("x",)]
        assert records.labels == ["01", 1, 1]


def test_a_cell_may_be_longer_than_a_megabyte(tmp_path):
    text = "word " * 400_000
    assert read(tmp_path, "x.csv", f"text,label\nshort,0\n{text},1\n").texts == [
        ("short",),
        (text,),
    ]


def test_a_pair_has_its_texts_in_the_order_of_the_columns(tmp_path):
    records = read(tmp_path, "x.csv", "hypothesis,label,premise,more\nh,0,p,?\n", PAIR)
    assert records.texts == [("p", "h")]


def test_an_optional_column_may_be_missing_completely_or_in_some_rows(tmp_path):
    columns = Columns(("text", "more"), None, optional=("more",))
    assert read(tmp_path, "x.csv", "text\none\n", columns).texts == [("one", "")]
    assert read(
        tmp_path, "x.jsonl", '{"text": "a", "more": null}\n{"text": "b", "more": "c"}', columns
    ).texts == [
        ("a", ""),
        ("b", "c"),
    ]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([1, 0], [1, 0]),
        ([1.0, -1.0], [1, -1]),
        (["1", "-2"], [1, -2]),
        (["01", " 1e5 "], ["01", "1e5"]),
        (["9" * 18, "9" * 20], [10**18 - 1, "9" * 20]),
        ([True, False], [1, 0]),
        (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        (pa.array([3, 2], pa.uint8()), [3, 2]),
    ],
)
def test_labels_are_words_or_integers(values, labels, tmp_path):
    records = read(tmp_path, "x.parquet", parquet(text=["one", "two"], label=values))
    assert records.labels == labels
    assert [type(label) for label in records.labels] == [type(label) for label in labels]


def test_a_column_that_pandas_stored_as_index_is_a_column(tmp_path):
    path = tmp_path / "x.parquet"
    pd.DataFrame({"text": ["one", "two"], "label": ["a", "b"]}).set_index("label").to_parquet(path)
    assert read_files([path], TEXT).labels == ["a", "b"]


# ---------------------------------------------------------------- bad files


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "x.csv",
            "txet,label\none,1\n",
            ": no column 'text'; did you mean 'txet'? its columns: txet, label",
        ),
        (
            "x.csv",
            "text,text,label\na,b,1\n",
            ": several columns are called 'text'; rename all but one",
        ),
        ("x.csv", "", ": cannot be read (Empty CSV file)"),
        # pandas would take the first cell of each row for an index, and the label for the text.
        (
            "x.csv",
            "text,label\na,b,1\n",
            ": cannot be read (CSV parse error: Row #2: Expected 2 columns, got 3",
        ),
        (
            "x.csv",
            "text,label\nschön,1\n".encode("latin-1"),
            ": cannot be read (In CSV column #0: Row #2: CSV",
        ),
        (
            "x.json",
            "text: schön".encode("latin-1"),
            ": cannot be read ('utf-8' codec can't decode byte 0xf6",
        ),
        ("x.json", "[]", ": the file is empty"),
        ("x.txt", "a", ": unknown file type; expected one of .parquet, .csv, .tsv, .jsonl, .json"),
    ],
)
def test_a_table_that_cannot_be_used_is_reported_in_one_line(name, content, message, tmp_path):
    assert error_of(tmp_path, name, content).startswith(message)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"label": 1}', ", row 2: column 'text': expected text, got None"),
        ('{"text": 3.5, "label": 1}', ", row 2: column 'text': expected text, got 3.5"),
        (
            '{"text": "a", "label": ""}',
            ", row 2: column 'label': expected a word or an integer as label, got ''",
        ),
        (
            '{"text": "a", "label": NaN}',
            ", row 2: column 'label': expected a word or an integer as label, got nan",
        ),
        (
            '{"text": "a", "label": 0.5}',
            ", row 2: column 'label': expected a word or an integer as label, got 0.5",
        ),
        ('["b", 1]', ", row 2: expected a JSON object"),
        ('{"text": "b", "label"}', ", line 2: invalid JSON (Expecting ':' delimiter"),
    ],
)
def test_a_row_that_cannot_be_used_is_reported(line, message, tmp_path):
    assert error_of(tmp_path, "x.jsonl", '{"text": "fine", "label": 1}\n' + line).startswith(
        message
    )


@pytest.mark.parametrize("content", [b"", b"junk", parquet(text=["a"], label=[1])[:-20]])
def test_a_damaged_parquet_file_is_reported(content, tmp_path):
    assert error_of(tmp_path, "x.parquet", content).startswith(": cannot be read (")


def test_a_table_with_only_a_header_has_no_rows(tmp_path):
    records = read(tmp_path, "x.csv", "text,label\n")
    assert len(records) == 0
    assert records.sources == [(str(tmp_path / "x.csv"), 0)]


def test_interruptions_and_our_own_errors_stay_as_they_are():
    for error in (KeyboardInterrupt(), UserError("ours")):
        with pytest.raises(type(error)) as caught, reading("x", "a problem", "advice"):
            raise error
        assert caught.value is error


def test_reasons_are_short_and_never_empty():
    assert reason_of(ValueError("a  b\nc")) == "a b c"
    assert reason_of(ValueError("x" * 10_000 + "y" * 100)) == "x" * 100 + " … " + "y" * 100
    assert reason_of(ValueError()) == "ValueError"
