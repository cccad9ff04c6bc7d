from __future__ import annotations

import pytest

from cudt.utils.text import ranges


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([1], "1"),
        ([*range(1, 13)], "1–12"),
        ([5, 1, 2, 3, 2], "1–3, 5"),
        ([1, 3, 4, 7], "1, 3–4, 7"),
    ],
)
def test_neighbours_are_a_range(numbers, text):
    assert ranges(numbers) == text
