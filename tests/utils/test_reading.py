from __future__ import annotations

import json
import math

import pytest

from cudt.utils.reading import ContentError, check_csv, csv_table, json_object, json_value, sealed, unsealed

COLUMNS, NUMBERS, COUNTS = ["kind", "gamma", "n"], ["gamma"], ["n"]
GOOD = b'kind,gamma,n\ngaussian,0.1,20\n"a, b",nan,3\n'


def read(content: bytes):
    return csv_table(content, COLUMNS, NUMBERS, COUNTS)


def test_a_table_has_words_numbers_and_integers():
    table = read(GOOD)
    assert table["kind"].tolist() == ["gaussian", "a, b"]
    assert table["gamma"].tolist()[0] == 0.1
    assert math.isnan(table["gamma"].tolist()[1])
    assert [str(one) for one in table.dtypes][1:] == ["float64", "int64"]


def test_words_that_look_like_missing_values_are_words():
    assert read(b"kind,gamma,n\nnan,0.1,20\nNA,1,2\n")["kind"].tolist() == ["nan", "NA"]


BAD_TABLES = {
    "empty": (b"", "empty"),
    "header only": (b"kind,gamma,n\n", "no rows"),
    "cut off in a number": (GOOD[:-2], "the last line is cut off"),
    "cut off after a number": (GOOD[:-1], "the last line is cut off"),
    "a missing cell": (b"kind,gamma,n\ngaussian,0.1\n", "line 2 has 2 cells instead of 3"),
    "another cell": (b"kind,gamma,n\ngaussian,0.1,20,3\n", "line 2 has 4 cells instead of 3"),
    "another cell in a quoted file": (GOOD + b"a,1,2,3\n", "line 4 has 4 cells instead of 3"),
    "an empty line": (b"kind,gamma,n\n\ngaussian,0.1,20\n", "line 2 has 1 cells"),
    "an empty number": (b"kind,gamma,n\ngaussian,,20\n", "a bad number"),
    "an empty integer": (b"kind,gamma,n\ngaussian,0.1,\n", "a bad number"),
    "a bad number": (b"kind,gamma,n\ngaussian,0.1x,20\n", "a bad number: could not convert"),
    "an integer with a point": (b"kind,gamma,n\ngaussian,0.1,2.5\n", "a bad number"),
    "a huge integer": (b"kind,gamma,n\ngaussian,0.1,99999999999999999999999\n", "a bad number"),
    "another column": (b"kind,gamma,m\ngaussian,0.1,20\n", "expected columns kind, gamma, n; found kind, gamma, m"),
    "columns in another order": (b"gamma,kind,n\n0.1,gaussian,20\n", "expected columns"),
    "a zero byte": (GOOD.replace(b"0.1", b"0\0001"), "zero byte"),
    "another encoding": (GOOD.replace(b"a", b"\xe4"), "not UTF-8 at byte"),
    "a carriage return": (b"kind,gamma,n\ngaus\rsian,0.1,20\n", "a bad number"),
    "a carriage return at the end": (b"kind,gamma,n\ngaussian,0.1,20\n\r,,\n", ""),
    "an open quote": (b'kind,gamma,n\n"gaussian,0.1,20\n', ""),
}


@pytest.mark.parametrize(("content", "reason"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_a_table_that_is_not_whole_is_refused(content, reason):
    with pytest.raises(ContentError, match=reason):
        read(content)


def test_history_may_have_no_rows_yet():
    assert csv_table(b"kind,gamma,n\n", COLUMNS, NUMBERS, COUNTS, may_be_empty=True).empty


def test_two_columns_of_one_name_are_refused():
    assert check_csv(b"a,b\n1,2\n") == 1
    with pytest.raises(ContentError, match="same name"):
        check_csv(b"a,a\n1,2\n")


def test_json_with_numbers_that_json_does_not_have():
    assert json_value('{"a": [1, NaN, "é"]}'.encode())["a"][2] == "é"


BAD_JSON = {
    "empty": b"",
    "cut off": b'{"a": [1, 2',
    "a key twice": b'{"a": 1, "b": {"c": 2, "c": 3}}',
    "a list": b"[1]",
    "3,000 levels": b"[" * 3000 + b"]" * 3000,
    "100 levels": b'{"a":' * 100 + b"1" + b"}" * 100,
    "a million levels": b"[" * 1_000_000,
    "a lone surrogate": b'{"a": ["x", {"b": "\\ud800"}]}',
    "a lone surrogate in a key": b'{"\\ud800": 1}',
    "another encoding": '{"a": "é"}'.encode("latin-1"),
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "a zero byte": b'{"a": "\0"}',
}


@pytest.mark.parametrize("content", BAD_JSON.values(), ids=BAD_JSON)
def test_a_document_that_is_not_whole_is_refused(content):
    with pytest.raises(ContentError):
        json_object(content)


def test_sealed_values_are_noticed_when_they_change():
    text = sealed({"loss": 0.25, "source": "ERM, é"}).encode()
    assert unsealed(text) == {"loss": 0.25, "source": "ERM, é"}
    assert unsealed(b'{"loss": 0.25}') == {"loss": 0.25}
    with pytest.raises(ContentError, match="not what was written"):
        unsealed(text.replace(b"0.25", b"0.26"))
    assert json.loads(text)["loss"] == 0.25
