"""Tables for people: the same headings and cells as Markdown, as LaTeX with booktabs, and on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    # In LaTeX's first fonts other signs stand in their places.
    **{sign: f"${sign}$" for sign in "<>|"},
    "γ": r"$\gamma$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "η₂": r"$\eta_2$",
    "f_0": "$f_0$",
    "σ": r"$\sigma$",
    "λ": r"$\lambda$",
    "≤": r"$\leq$",
    "×": r"$\times$",
    "−": "$-$",
    "…": r"\ldots{}",
    "\n": " ",
    "†": r"$^\dagger$",
}


@dataclass(frozen=True)
class Entry:
    """What stands in a cell: a value that may be marked, and in small print what belongs to it."""

    text: str = ""
    detail: str = ""
    is_bold: bool = False
    mark: str = ""

    def markdown(self) -> str:
        value = _markdown(self.text)
        value = (f"**{value}**" if self.is_bold else value) + self.mark
        return " ".join(part for part in (value, f"({_markdown(self.detail)})" if self.detail else "") if part)

    def latex(self) -> str:
        value = latex(self.text)
        value = (rf"\textbf{{{value}}}" if self.is_bold else value) + latex(self.mark)
        detail = rf"{{\scriptsize ({latex(self.detail)})}}" if self.detail else ""
        return " ".join(part for part in (value, detail) if part)


@dataclass(frozen=True)
class Layout:
    """A table: groups of headings over headings, rows of entries, and notes below."""

    stem: str
    title: str
    groups: list[tuple[str, int]]
    """Headings over several columns, with how many; those of no group have an empty one over them."""
    headings: list[str]
    rows: list[list[Entry]]
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """GitHub's Markdown has one row of headings, so that groups are told in each."""
        over = [name for name, span in self.groups for _ in range(span)]
        headings = [f"{group} {heading}".strip() for group, heading in zip(over, self.headings, strict=True)]
        lines = [_markdown_row([_markdown(heading) for heading in headings]), _markdown_row(["---"] * len(headings))]
        lines += [_markdown_row([entry.markdown() for entry in row]) for row in self.rows]
        notes = [f"\n{_markdown(note)}" for note in self.notes]
        return "\n".join([f"## {_markdown(self.title)}\n", *lines, *notes]) + "\n"

    def latex(self) -> str:
        """A floating table, for a document that uses booktabs."""
        columns = "l" * len(self.headings)
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex(self.title)}}}"]
        lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
        if any(name for name, _ in self.groups):
            lines += [_latex_row([_spanning(name, span) for name, span in self.groups]), self._rules()]
        lines += [_latex_row([latex(heading) for heading in self.headings]), r"\midrule"]
        lines += [_latex_row([entry.latex() for entry in row]) for row in self.rows]
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\par\smallskip{{\footnotesize {latex(note)}}}" for note in self.notes]
        return "\n".join([*lines, r"\end{table}"]) + "\n"

    def _rules(self) -> str:
        """A rule under each heading that stands over several."""
        rules, start = [], 1
        for name, span in self.groups:
            if name:
                rules.append(rf"\cmidrule(lr){{{start}-{start + span - 1}}}")
            start += span
        return " ".join(rules)


def latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    escaped, place = "", 0
    while place < len(text):
        sign = next((sign for sign in _LATEX if len(sign) > 1 and text.startswith(sign, place)), text[place])
        escaped += _LATEX.get(sign, sign)
        place += len(sign)
    return escaped


def _spanning(name: str, span: int) -> str:
    return rf"\multicolumn{{{span}}}{{c}}{{{latex(name)}}}" if name else " & " * (span - 1)


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown(text: str) -> str:
    """Text that Markdown shows as it is."""
    return "".join(f"\\{sign}" if sign in "\\`*_{}[]<>|#" else sign for sign in text).replace("\n", " ")
