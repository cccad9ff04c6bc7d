from __future__ import annotations

import pytest

from benchmarks import page


def test_content_replaces_what_is_between_its_marks(tmp_path):
    file = tmp_path / "page.md"
    file.write_text("before\n<!-- one -->\nold\n<!-- /one -->\nafter\n<!-- other -->\nkept\n<!-- /other -->\n")
    page.put_into(file, "one", page.table(["a", "b"], [["1", "2"]]))
    assert file.read_text() == (
        "before\n<!-- one -->\n| a | b |\n| --- | --- |\n| 1 | 2 |\n<!-- /one -->\nafter\n"
        "<!-- other -->\nkept\n<!-- /other -->\n"
    )


def test_a_page_without_the_marks_is_refused(tmp_path):
    file = tmp_path / "page.md"
    file.write_text("nothing here")
    with pytest.raises(SystemExit, match="no lines <!-- one -->"):
        page.put_into(file, "one", "content")
