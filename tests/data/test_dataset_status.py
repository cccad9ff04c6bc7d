from __future__ import annotations

from pathlib import Path

import pytest

from cudt.data.dataset_status import DatasetStatus

FOLDER = Path("data/films")


@pytest.mark.parametrize(
    ("parts", "problem", "lines"),
    [
        ({"train": "2 files"}, "", ["complete data/films", "    train: 2 files"]),
        (
            {"train": "2 files"},
            "no test",
            ["partial  data/films", "    train: 2 files", "    no test"],
        ),
        ({}, "download it", ["missing  data/films", "    download it"]),
    ],
)
def test_a_status_has_a_heading_a_line_for_each_split_and_the_problem(parts, problem, lines):
    heading, *details = DatasetStatus("Films", FOLDER, parts, problem).lines()
    assert heading.startswith("Films ")
    assert [heading.removeprefix("Films").lstrip(), *details] == lines
