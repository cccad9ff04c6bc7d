"""A table for people: as Markdown, as LaTeX (booktabs), and on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

_LATEX = {
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    # LaTeX's default font encoding prints other characters for these.
    **{sign: f"${sign}$" for sign in "<>|"},
    **{"γ": r"$\gamma$", "α": r"$\alpha$", "β": r"$\beta$", "σ": r"$\sigma$", "η": r"$\eta$"},
    **{"₂": "$_2$", "−": "$-$", "…": r"\ldots{}", "\n": " ", "†": r"$^\dagger$"},
}


@dataclass(frozen=True)
class Entry:
    """One cell: a value that may be bold or marked, and a detail in small print."""

    text: str = ""
    detail: str = ""
    is_bold: bool = False
    mark: str = ""

    def markdown(self) -> str:
        """`**value**† (detail)`."""
        value = _markdown(self.text)
        value = (f"**{value}**" if self.is_bold else value) + self.mark
        return f"{value} ({_markdown(self.detail)})".strip() if self.detail else value

    def latex(self) -> str:
        r"""`\textbf{value} {\scriptsize (detail)}`."""
        value = latex(self.text)
        value = (rf"\textbf{{{value}}}" if self.is_bold else value) + latex(self.mark)
        detail = rf" {{\scriptsize ({latex(self.detail)})}}" if self.detail else ""
        return f"{value}{detail}".strip()


@dataclass(frozen=True)
class TextTable:
    """A title, columns with an optional heading over several, rows, and notes below."""

    stem: str
    title: str
    columns: list[tuple[str, str]]
    """The heading over several columns, empty for none, and the column's own."""
    rows: list[list[Entry]]
    notes: list[str] = field(default_factory=list)
    has_runs: bool = True

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The headings over several columns, each with its number of columns."""
        return [(name, len([*mine])) for name, mine in groupby(over for over, _ in self.columns)]

    def markdown(self) -> str:
        """The table in GitHub's Markdown, which has one row of headings."""
        headings = [_markdown(f"{over} {own}".strip()) for over, own in self.columns]
        rows = [headings, ["---"] * len(headings)]
        rows += [[entry.markdown() for entry in row] for row in self.rows]
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        notes = [f"\n{_markdown(note)}" for note in self.notes]
        return "\n".join([f"## {_markdown(self.title)}\n", *lines, *notes]) + "\n"

    def latex(self) -> str:
        """The table as a LaTeX float, for a document that loads booktabs."""
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex(self.title)}}}"]
        lines += [rf"\begin{{tabular}}{{{'l' * len(self.columns)}}}", r"\toprule"]
        if any(name for name, _ in self.groups):
            spans = [
                rf"\multicolumn{{{span}}}{{c}}{{{latex(name)}}}" if name else " & " * (span - 1)
                for name, span in self.groups
            ]
            ends = [sum(span for _, span in self.groups[: n + 1]) for n in range(len(self.groups))]
            rules = [
                rf"\cmidrule(lr){{{end - span + 1}-{end}}}"
                for (name, span), end in zip(self.groups, ends, strict=True)
                if name
            ]
            lines += [_row(spans), " ".join(rules)]
        lines += [_row([latex(own) for _, own in self.columns]), r"\midrule"]
        lines += [_row([entry.latex() for entry in row]) for row in self.rows]
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\par\smallskip{{\footnotesize {latex(note)}}}" for note in self.notes]
        return "\n".join([*lines, r"\end{table}"]) + "\n"


def latex(text: str) -> str:
    """Escape a text so that LaTeX prints it as it is."""
    return "".join(_LATEX.get(sign, sign) for sign in text)


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _markdown(text: str) -> str:
    """Escape a text so that Markdown shows it as it is."""
    escaped = "".join(f"\\{sign}" if sign in "\\`*_{}[]<>|#" else sign for sign in text)
    return escaped.replace("\n", " ")
