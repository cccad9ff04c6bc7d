from __future__ import annotations

import io

import pandas as pd
import pytest

from cudt.utils.spreadsheets import as_cell, csv_text, from_cell, read_texts


@pytest.mark.parametrize("text", ["=1+1", "+a", "-rf", "@a", "\ta", "\r=a", "\n=a", "'=a", "''=a", "-", "=", "'-"])
def test_a_text_that_begins_like_a_formula_is_written_as_text_and_read_back(text):
    assert as_cell(text) == f"'{text}"
    assert from_cell(as_cell(text)) == text


@pytest.mark.parametrize("value", ["-1", "+2.5e-3", "-inf", "a=b", "", "'quoted'", "it's", -1, -2.5, None, True])
def test_numbers_and_other_texts_stay_as_they_are(value):
    assert as_cell(value) == value
    assert from_cell(value) == value


def test_a_table_comes_back():
    table = pd.DataFrame(
        {"name": ["=a", "b", "'-c"], "value": [-1.0, 2.5, 3.0], "mixed": [-1, "-x", None]}, dtype=object
    )
    table = table.astype({"value": float})
    text = csv_text(table)
    assert text.splitlines()[1:] == ["'=a,-1.0,-1", "b,2.5,'-x", "''-c,3.0,"]
    read = read_texts(pd.read_csv(io.StringIO(text)))
    assert read["name"].tolist() == table["name"].tolist()
    assert read["value"].tolist() == [-1.0, 2.5, 3.0]
    assert read["mixed"].tolist()[:2] == ["-1", "-x"]
