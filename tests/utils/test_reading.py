from __future__ import annotations

import json
import math

import pytest

from cudt.utils.reading import ContentError, csv_table, json_object, json_value, sealed, unsealed

COLUMNS, NUMBERS, COUNTS = ["kind", "gamma", "n"], ["gamma"], ["n"]
GOOD = b'kind,gamma,n\ngaussian,0.1,20\n"a, b",nan,3\nnan,1,2\n'


def test_a_table_has_words_numbers_and_integers():
    table = csv_table(GOOD, COLUMNS, NUMBERS, COUNTS)
    assert table["kind"].tolist() == ["gaussian", "a, b", "nan"]
    assert table["gamma"].tolist()[0] == 0.1
    assert math.isnan(table["gamma"].tolist()[1])
    assert [str(one) for one in table.dtypes][1:] == ["float64", "int64"]


BAD_TABLES = {
    "empty": b"",
    "header only": b"kind,gamma,n\n",
    "cut off": GOOD[:-1],
    "another cell": b"kind,gamma,n\ngaussian,0.1,20\na,1,2,3\n",
    "an empty number": b"kind,gamma,n\ngaussian,,20\n",
    "an integer with a point": b"kind,gamma,n\ngaussian,0.1,2.5\n",
    "another column": b"kind,gamma,m\ngaussian,0.1,20\n",
    "another encoding": GOOD.replace(b"a", b"\xe4"),
}


@pytest.mark.parametrize("content", BAD_TABLES.values(), ids=BAD_TABLES)
def test_a_table_that_is_not_whole_is_refused(content):
    with pytest.raises(ContentError):
        csv_table(content, COLUMNS, NUMBERS, COUNTS)


def test_history_may_have_no_rows_yet():
    assert csv_table(b"kind,gamma,n\n", COLUMNS, NUMBERS, COUNTS, may_be_empty=True).empty


def test_json_with_numbers_that_json_does_not_have():
    assert json_value('{"a": [1, NaN, "é"]}'.encode())["a"][2] == "é"


@pytest.mark.parametrize("content", [b"", b'{"a": [1, 2', b"[1]", '{"a": "é"}'.encode("latin-1")])
def test_a_document_that_is_not_whole_is_refused(content):
    with pytest.raises(ContentError):
        json_object(content)


def test_sealed_values_are_noticed_when_they_change():
    text = sealed({"loss": 0.25, "source": "ERM, é"}).encode()
    assert unsealed(text) == {"loss": 0.25, "source": "ERM, é"}
    with pytest.raises(ContentError, match="not what was written"):
        unsealed(text.replace(b"0.25", b"0.26"))
    assert json.loads(text)["loss"] == 0.25
