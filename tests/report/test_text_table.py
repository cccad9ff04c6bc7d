from __future__ import annotations

import re

import pytest

from cudt.report.text_table import Entry, TextTable, latex

STRANGE = r"a|b_c & 50 % of $x$ #1 {y} ~ ^ \z *bold* `code` [link](to) <b>"
TABLE = TextTable(
    "stem",
    "A title of 5 % & more",
    [("", 1), ("UCSD", 2), ("a_b", 1)],
    ["γ_train", "constr.", "unconstr.", "|"],
    [
        [
            Entry("0.5"),
            Entry("1.000", "1.1, -0.100; 2 seeds", is_bold=True, mark="†"),
            Entry(detail="2"),
            Entry(),
        ],
        [Entry(STRANGE), Entry("−1"), Entry("α", "f_0"), Entry("two\nlines")],
    ],
    ["A note with | and _.", "Another."],
)


def unescaped(text: str) -> str:
    """What a reader of Markdown sees."""
    return re.sub(r"\\(.)", r"\1", text)


def markdown_rows(text: str) -> list[list[str]]:
    """The cells of a table in Markdown, as GitHub splits them: at every bar without a backslash
    before it."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    split = [re.split(r"(?<!\\)(?:\\\\)*\|", line)[1:-1] for line in lines]
    return [[unescaped(cell.strip()) for cell in row] for row in split]


def test_markdown_parses_to_the_same_cells():
    heading, rule, *rows = markdown_rows(TABLE.markdown())
    assert heading == ["γ_train", "UCSD constr.", "UCSD unconstr.", "a_b |"]
    assert rule == ["---"] * 4
    assert rows[0] == ["0.5", "**1.000**† (1.1, -0.100; 2 seeds)", "(2)", ""]
    assert rows[1] == [STRANGE, "−1", "α (f_0)", "two lines"]


def test_characters_with_a_meaning_in_markdown_are_escaped():
    text = TABLE.markdown()
    for sign in ("|", "_", "*", "`", "[", "<", "#"):
        # Without the title's ##, the bars between cells and the stars around bold values.
        body = re.sub(r"^## |\*\*|(?m:^\| )| \| | \|$", "", text, flags=re.MULTILINE)
        assert not re.search(rf"(?<!\\){re.escape(sign)}", body), sign


# ---------------------------------------------------------------- LaTeX


def latex_rows(text: str) -> list[str]:
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    return [line.removesuffix(r" \\") for line in body.splitlines() if line.endswith(r" \\")]


def columns(row: str) -> int:
    """How many columns a row of a tabular takes."""
    cells = re.split(r"(?<!\\)&", row)
    spans = [re.match(r"\s*\\multicolumn\{(\d+)\}", cell) for cell in cells]
    return sum(int(span.group(1)) if span else 1 for span in spans)


def check_latex(text: str) -> None:
    """Every row as wide as the table, every brace and environment closed, no bare special
    character."""
    found = re.search(r"\\begin\{tabular\}\{(l+)\}", text)
    assert found
    assert {columns(row) for row in latex_rows(text)} == {len(found.group(1))}
    plain = re.sub(r"\\[\\{}$&%#_]", "", text)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    assert not re.search("[%#]", plain)
    assert all(
        text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 1
        for name in ("table", "tabular")
    )
    outside = re.sub(r"\$[^$]*\$", "", plain)
    assert not re.search(r"[_^~]", outside)
    assert outside.isascii()


def test_latex_has_rules_below_the_headings_of_groups():
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-4}" in TABLE.latex()


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b & c", r"a\_b \& c"),
        ("50 % of $5", r"50 \% of \$5"),
        ("#1 {x}", r"\#1 \{x\}"),
        ("~^", r"\textasciitilde{}\textasciicircum{}"),
        (r"\textbf{x}", r"\textbackslash{}textbf\{x\}"),
        ("γ_train", r"$\gamma$\_train"),
        ("η₂ of f_0", r"$\eta_2$ of $f_0$"),
        ("1 − α", r"1 $-$ $\alpha$"),
        ("γ ≤ 0.4 … × σ", r"$\gamma$ $\leq$ 0.4 \ldots{} $\times$ $\sigma$"),
    ],
)
def test_latex_prints_a_text_verbatim(text, escaped):
    assert latex(text) == escaped


def test_a_bold_value_with_a_mark_and_small_print():
    entry = Entry("1.000", "2.000; 3 seeds", is_bold=True, mark="†")
    assert entry.latex() == r"\textbf{1.000}$^\dagger$ {\scriptsize (2.000; 3 seeds)}"
