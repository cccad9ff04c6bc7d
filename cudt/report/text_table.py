"""A table for people: one set of headings and cells, rendered as Markdown, as LaTeX (booktabs) and
on the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    # LaTeX's default font encoding prints other characters for these.
    **{sign: f"${sign}$" for sign in "<>|"},
    "γ": r"$\gamma$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "η₂": r"$\eta_2$",
    "f_0": "$f_0$",
    "σ": r"$\sigma$",
    "λ": r"$\lambda$",
    "ζ": r"$\zeta$",
    "τ": r"$\tau$",
    "≤": r"$\leq$",
    "×": r"$\times$",
    "−": "$-$",
    "…": r"\ldots{}",
    "\n": " ",
    "†": r"$^\dagger$",
}


@dataclass(frozen=True)
class Entry:
    """The content of one cell: a value that may be bold or marked, and a detail in small print."""

    text: str = ""
    detail: str = ""
    is_bold: bool = False
    mark: str = ""

    def markdown(self) -> str:
        value = _markdown(self.text)
        value = (f"**{value}**" if self.is_bold else value) + self.mark
        return " ".join(
            part for part in (value, f"({_markdown(self.detail)})" if self.detail else "") if part
        )

    def latex(self) -> str:
        value = latex(self.text)
        value = (rf"\textbf{{{value}}}" if self.is_bold else value) + latex(self.mark)
        detail = rf"{{\scriptsize ({latex(self.detail)})}}" if self.detail else ""
        return " ".join(part for part in (value, detail) if part)


@dataclass(frozen=True)
class TextTable:
    """A title, one or two rows of headings, rows of entries, and notes below the table."""

    stem: str
    title: str
    groups: list[tuple[str, int]]
    """Headings that span several columns, each with its number of columns; an empty name spans
    columns without one."""
    headings: list[str]
    rows: list[list[Entry]]
    notes: list[str] = field(default_factory=list)
    is_prose: bool = False
    """Whether its cells are sentences, which wrap on the page."""

    def markdown(self) -> str:
        """The table in GitHub's Markdown, which has one row of headings: the group's name is part
        of each heading.
        """
        over = [name for name, span in self.groups for _ in range(span)]
        headings = [
            f"{group} {heading}".strip() for group, heading in zip(over, self.headings, strict=True)
        ]
        lines = [
            _markdown_row([_markdown(heading) for heading in headings]),
            _markdown_row(["---"] * len(headings)),
        ]
        lines += [_markdown_row([entry.markdown() for entry in row]) for row in self.rows]
        notes = [f"\n{_markdown(note)}" for note in self.notes]
        return "\n".join([f"## {_markdown(self.title)}\n", *lines, *notes]) + "\n"

    def latex(self) -> str:
        """The table as a LaTeX float, for a document that loads booktabs."""
        columns = "l" * len(self.headings)
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex(self.title)}}}"]
        lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
        if any(name for name, _ in self.groups):
            lines += [
                _latex_row([_spanning(name, span) for name, span in self.groups]),
                self._rules(),
            ]
        lines += [_latex_row([latex(heading) for heading in self.headings]), r"\midrule"]
        lines += [_latex_row([entry.latex() for entry in row]) for row in self.rows]
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\par\smallskip{{\footnotesize {latex(note)}}}" for note in self.notes]
        return "\n".join([*lines, r"\end{table}"]) + "\n"

    def _rules(self) -> str:
        """A rule under each group heading."""
        rules, start = [], 1
        for name, span in self.groups:
            if name:
                rules.append(rf"\cmidrule(lr){{{start}-{start + span - 1}}}")
            start += span
        return " ".join(rules)


def latex(text: str) -> str:
    """Escape a text so that LaTeX prints it verbatim."""
    escaped, position = "", 0
    while position < len(text):
        sign = next(
            (sign for sign in _LATEX if len(sign) > 1 and text.startswith(sign, position)),
            text[position],
        )
        escaped += _LATEX.get(sign, sign)
        position += len(sign)
    return escaped


def _spanning(name: str, span: int) -> str:
    return rf"\multicolumn{{{span}}}{{c}}{{{latex(name)}}}" if name else " & " * (span - 1)


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown(text: str) -> str:
    """Escape a text so that Markdown shows it verbatim."""
    return "".join(f"\\{sign}" if sign in "\\`*_{}[]<>|#" else sign for sign in text).replace(
        "\n", " "
    )
