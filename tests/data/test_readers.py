from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from functools import partial

import pandas as pd
import pyarrow as pa
import pytest

from cudt.data import readers
from cudt.data.records import read_files
from cudt.utils.errors import UserError
from tests.tasks import PAIR, TEXT, error_of, parquet, read

# ---------------------------------------------------------------- file types

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
    assert read(tmp_path, "x.jsonl", json.dumps({"text": text, "label": 0}, ensure_ascii=False)).texts == [(text,)]


@pytest.mark.parametrize("word", ["NA", "null", "nan", "None", "N/A", "", " ", "1", "1e5", "TRUE", "#N/A"])
def test_words_that_pandas_takes_for_gaps_or_numbers_stay_words(word, tmp_path):
    records = read(tmp_path, "x.csv", f"text,label\n{word},null\nx,NA\n")
    assert records.texts[0] == (word,)
    assert records.labels == ["null", "NA"]


def test_a_text_may_be_longer_than_the_limit_of_the_csv_module(tmp_path):
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
def test_labels_are_words_or_integers(values, labels, tmp_path):
    records = read(tmp_path, "x.parquet", parquet(text=["one", "two"], label=values))
    assert records.labels == labels
    assert [type(label) for label in records.labels] == [str if isinstance(labels[0], str) else int] * 2


def test_a_column_that_pandas_stored_as_index_is_a_column(tmp_path):
    path = tmp_path / "x.parquet"
    pd.DataFrame({"text": ["one", "two"], "label": ["a", "b"]}).set_index("label").to_parquet(path)
    assert read_files([path], TEXT).labels == ["a", "b"]


# ---------------------------------------------------------------- bad files


def test_a_missing_column_is_reported_with_the_nearest_and_all_columns(tmp_path):
    content = "txet,label,id\none,1,7\n"
    assert (
        error_of(tmp_path, "x.csv", content) == ": no column 'text'; did you mean 'txet'? its columns: txet, label, id"
    )
    content = "review,stars\none,1\n"
    assert error_of(tmp_path, "x.csv", content) == ": no column 'text'; its columns: review, stars"
    content = "premise,label\none,1\n"
    assert error_of(tmp_path, "x.csv", content, PAIR) == ": no column 'hypothesis'; its columns: premise, label"


def test_a_duplicate_column_is_refused(tmp_path):
    assert (
        error_of(tmp_path, "x.csv", "text,text,label\na,b,1\n")
        == ": several columns are called 'text'; rename all but one"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"label": 1}', "column 'text' is empty; add a text or remove the row"),
        ('{"text": null, "label": 1}', "column 'text' is empty; add a text or remove the row"),
        ('{"text": 3.5, "label": 1}', "column 'text': expected text, got 3.5"),
        ('{"text": ["a", "b"], "label": 1}', "column 'text': expected text, got ['a', 'b']"),
        ('{"text": {}, "label": 1}', "column 'text': expected text, got {}"),
        # Half an emoji; tokenizers refuse it.
        ('{"text": "so \\ud83d", "label": 1}', "column 'text' has half a surrogate pair ('\\ud83d'); replace it"),
        ('{"text": "a"}', "column 'label' is empty; add a label or remove the row"),
        ('{"text": "a", "label": null}', "column 'label' is empty; add a label or remove the row"),
        ('{"text": "a", "label": ""}', "column 'label' is empty; add a label or remove the row"),
        ('{"text": "a", "label": NaN}', "column 'label' is empty; add a label or remove the row"),
        ('{"text": "a", "label": 0.5}', "column 'label': expected a word or an integer as label, got 0.5"),
        ('{"text": "a", "label": Infinity}', "column 'label': expected a word or an integer as label, got inf"),
        (
            '{"text": "a", "label": 9223372036854775808}',
            "column 'label': expected a word or an integer as label, got 922",
        ),
        ('{"text": "a", "label": "\\ud83d"}', "column 'label' has half a surrogate pair ('\\ud83d'); replace it"),
        ('{"text": "a", "label": [1, 2]}', "column 'label': expected a word or an integer as label, got [1, 2]"),
    ],
)
def test_a_cell_that_cannot_be_used_is_reported_with_its_row(line, message, tmp_path):
    good = '{"text": "fine", "label": 1}\n'
    assert error_of(tmp_path, "x.jsonl", good + line).startswith(f", row 2: {message}")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a", None], "label": [1, 0]}, "row 2: column 'text' is empty"),
        ({"text": [["a", "b"], []], "label": [1, 0]}, "row 1: column 'text': expected text, got ["),
        ({"text": [b"a", b"b"], "label": [1, 0]}, "row 1: column 'text': expected text, got b'a'"),
        ({"text": ["a", "b"], "label": [1, None]}, "row 2: column 'label' is empty"),
        (
            {"text": ["a", "b"], "label": [1.0, 1.5]},
            "row 2: column 'label': expected a word or an integer as label, got 1.5",
        ),
        (
            {"text": ["a", "b"], "label": [[1, 2], [0, 3]]},
            "row 1: column 'label': expected a word or an integer as label, got [1, 2]",
        ),
    ],
)
def test_a_cell_of_a_parquet_file_that_cannot_be_used_is_reported_with_its_row(columns, message, tmp_path):
    assert error_of(tmp_path, "x.parquet", parquet(**columns)).startswith(f", {message}")


@pytest.mark.parametrize("missing", ["text", "label"])
def test_gaps_in_the_newer_column_types_of_pandas_are_gaps(missing, tmp_path):
    path = tmp_path / "x.parquet"
    frame = pd.DataFrame({"text": pd.array(["a", "b"], "string"), "label": pd.array([1, 0], "Int64")})
    frame.loc[1, missing] = pd.NA
    frame.to_parquet(path)
    with pytest.raises(UserError, match=f"row 2: column '{missing}' is empty"):
        read_files([path], TEXT)


def test_a_long_value_is_shortened(tmp_path):
    line = json.dumps({"text": list(range(10_000)), "label": 1})
    assert len(error_of(tmp_path, "x.jsonl", line)) < 100


@pytest.mark.parametrize(
    ("content", "message"),
    [
        # A comma without quotes. pandas would silently use the first cell of each row as index.
        (
            "text,label\na,b,1\nc,d,0\n",
            ", line 2: expected 2 cells separated by ',', got 3; quote cells that contain ','",
        ),
        (
            "text,label\na,1\nc,d,0\n",
            ", line 3: expected 2 cells separated by ',', got 3; quote cells that contain ','",
        ),
        ("text,label\na,1,\n", ", line 2: expected 2 cells separated by ',', got 3; quote cells"),
        ("label,text\n1,a\n\n0\n", ", line 4: expected 2 cells separated by ',', got 1"),
        ('text,label\n"a,1\nb,0\n', ", line 2: a quote of this row is never closed; close every quote"),
        ('text,label\n\na,1\n"b,0\nc,1\n"d",0\n', ", line 4: ',' expected after '\"'; close every quote"),
        ('text,label\na,1\n"b" c,0\n', ", line 3: ',' expected after '\"'; close every quote"),
        ('text,label\n"two\nlines",1\na\n', ", line 4: expected 2 cells separated by ',', got 1"),
        ("", ": the file is empty"),
        ("\n\n", ": the file is empty"),
    ],
)
def test_a_ragged_or_broken_table_is_reported_with_its_line(content, message, tmp_path):
    assert error_of(tmp_path, "x.csv", content).startswith(message)


@pytest.mark.parametrize(
    "content",
    [
        "text;label\ngood, and short;1\nbad;0\n",
        '"text";"label"\n"good, and short";"1"\n"bad";"0"\n',
        "text\tlabel\ngood, and short\t1\nbad\t0\n",
    ],
)
@pytest.mark.parametrize("name", ["x.csv", "x.tsv"])
def test_the_separator_is_that_of_the_header(name, content, tmp_path):
    records = read(tmp_path, name, content)
    assert (records.texts, records.labels) == ([("good, and short",), ("bad",)], [1, 0])


def test_rows_with_another_separator_than_the_header_are_reported_with_both(tmp_path):
    message = ", line 2: expected 2 cells separated by ';', got 1; quote cells that contain ';'"
    assert error_of(tmp_path, "x.csv", "text;label\na,1\n") == message


def test_another_separator_is_reported_with_those_that_are_read(tmp_path):
    message = ": no column 'text'; its only column: text|label (cells are separated by commas, semicolons or tabs)"
    assert error_of(tmp_path, "x.csv", "text|label\na|1\n") == message


def test_a_table_with_only_a_header_has_no_rows(tmp_path):
    records = read(tmp_path, "x.csv", "text,label\n")
    assert len(records) == 0
    assert records.sources == [(str(tmp_path / "x.csv"), 0)]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.json", "x.jsonl"])
def test_a_file_that_is_not_utf8_is_reported_with_line_and_byte(name, mark, tmp_path):
    content = mark + "text,label\ngut,1\nschön,1\n".encode("latin-1")
    assert error_of(tmp_path, name, content) == ", line 3: not UTF-8 (byte 0xf6); convert the file to UTF-8"


def test_another_encoding_is_reported_at_its_first_line(tmp_path):
    assert error_of(tmp_path, "x.csv", "text,label\na,1\n".encode("utf-16")).startswith(
        ", line 1: not UTF-8 (byte 0xff)"
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "x.jsonl",
            '{"text": "a", "label": 1}\n\n{"text": "b", "label"}',
            ", line 3: invalid JSON (Expecting ':' delimiter",
        ),
        ("x.jsonl", '{"text": "a", "label": 1}\n["b", 1]', ", line 2: expected a JSON object"),
        ("x.jsonl", "[" * 200_000, ", line 1: invalid JSON ("),
        ("x.jsonl", '{"text": "a", "label": ' + "1" * 5000 + "}", ", line 1: invalid JSON ("),
        ("x.jsonl", "\n\n", ": the file is empty"),
        ("x.json", '[{"text": "a"},\n{"text"]', ", row 2: invalid JSON (Expecting ':' delimiter: line 2 column 8"),
        ("x.json", '[{"text": "a"}\n{"text": "b"}]', ", row 1: invalid JSON (Expecting ',' delimiter: line 2"),
        ("x.json", '[{"text": "a"}, {"text": "b"}', ", row 2: invalid JSON ("),
        ("x.json", "", ": invalid JSON ("),
        ("x.json", '{"text": ["a"], "label": [1]}', ": expected a list of JSON objects"),
        ("x.json", '[{"text": "a"}, 1]', ", row 2: expected a JSON object"),
        ("x.json", "[]", ": the file is empty"),
    ],
)
def test_bad_json_is_reported_with_its_line(name, content, message, tmp_path):
    assert error_of(tmp_path, name, content).startswith(message)


@pytest.mark.parametrize(
    "content", [b"", b"junk", parquet(text=["a"], label=[1])[:-20], b"PAR1" + b"\0" * 50 + b"PAR1"]
)
def test_a_damaged_parquet_file_is_reported(content, tmp_path):
    assert error_of(tmp_path, "x.parquet", content).startswith(": not a valid parquet file (")


@pytest.mark.parametrize("name", ["x.txt", "x", "x.csv.gz"])
def test_an_unknown_file_type_is_reported_with_the_known_ones(name, tmp_path):
    message = ": unknown file type; expected one of .parquet, .csv, .tsv, .jsonl, .json"
    assert error_of(tmp_path, name, "text,label\na,1\n") == message


def test_a_text_that_is_not_utf8_inside_a_parquet_file_is_reported(tmp_path):
    texts = pa.array([b"fine", b"caf\xe9"], pa.binary()).view(pa.string())
    assert "not a valid parquet file" in (message := error_of(tmp_path, "x.parquet", parquet(text=texts, label=[0, 1])))
    assert "1" in message.split("string index")[1]


# ---------------------------------------------------------------- small files that become large


def peak(work: Callable[[], object]) -> float:
    """The memory that Python objects take at most, in megabytes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


def test_columns_that_are_not_needed_take_no_memory(tmp_path):
    """As a table of all columns, these rows are nine million cells."""
    rows = "\n".join(json.dumps({"text": "a", "label": 1, f"column {number}": 1}) for number in range(3000))
    for name, content in (("x.jsonl", rows), ("x.json", f"[{rows.replace(chr(10), ',')}]")):
        assert peak(partial(read, tmp_path, name, content)) < 20
    assert len(read(tmp_path, "x.jsonl", rows)) == 3000


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_text_that_a_parquet_file_stores_once_is_in_memory_once(kind, tmp_path):
    content = parquet(text=pa.array(["x" * 200_000] * 200, kind), label=[0, 1] * 100)
    assert len(content) < 20_000
    assert peak(lambda: read(tmp_path, "x.parquet", content)) < 5
    assert read(tmp_path, "x.parquet", content).texts[-1] == ("x" * 200_000,)


def test_a_parquet_file_with_more_data_than_its_size_allows_is_refused(tmp_path, monkeypatch):
    content = parquet(text=["a"] * 2000, label=[1] * 2000)
    monkeypatch.setattr(readers, "_ROWS", 100)
    assert error_of(tmp_path, "x.parquet", content).startswith(
        f": claims 2,000 rows, too much for a file of {len(content):,}"
    )
    content = parquet(text=["a" * 1_000_000], label=[1])
    monkeypatch.setattr(readers, "_UNPACKED", 100)
    monkeypatch.setattr(readers, "_RATIO", 2)
    assert ": claims 1,000,1" in error_of(tmp_path, "x.parquet", content)


def test_a_csv_cell_has_a_longest_length(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LONGEST", 1000)
    assert error_of(tmp_path, "x.csv", f"text,label\na,1\n{'a' * 1001},1\n").startswith(
        ", line 3: a cell has more than 1,000 characters, or its quote is never closed"
    )


def test_only_the_first_columns_are_listed_and_names_are_shortened(tmp_path):
    header = ",".join(["a" * 5000, "\x1b[31m", *(f"c{number}" for number in range(5000))])
    message = error_of(tmp_path, "x.csv", f"{header}\n{',' * 5001}\n")
    assert len(message) < 300
    assert "\x1b" not in message
    assert message.endswith(", c17, and 4982 more")


def test_a_label_that_is_a_text_is_refused(tmp_path):
    assert ", row 1: column 'label': a label of 5,000 characters ('xxxxx" in error_of(
        tmp_path, "x.csv", f"text,label\na,{'x' * 5000}\n"
    )


def test_digits_that_are_too_many_for_a_number_stay_a_word(tmp_path):
    assert read(tmp_path, "x.csv", "text,label\na,99999999999999999999\n").labels == ["99999999999999999999"]
    assert ": a label of 5,000 characters" in error_of(tmp_path, "x.csv", f"text,label\na,{'9' * 5000}\n")
