"""Compare data/paper/*.csv, which were typed in, with the LaTeX source of the paper, number by
number.

    python scripts/check_paper_numbers.py paper.tex

The source is that of arXiv 2601.17257. Prints a line for each difference; the exit code is 1 if
there is any.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "data" / "paper"
#: Each file and its table's label in the source.
RESULTS = {"rmse.csv": "tab:full_auc_video", "accuracy_auc.csv": "tab:full_auc_language"}
PARAMETERS = {
    "dual_video.csv": "tab:dual_hyperparameters_video",
    "dual_language.csv": "tab:dual_hyperparameters_language",
    "dual_llama.csv": "tab:hyperparameters_llm",
}


def rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table(source: str, label: str) -> tuple[str, str]:
    """The headings and the body of the table that has a label."""
    tables = re.findall(r"\\begin\{table\}.*?\\end\{table\}", source, re.DOTALL)
    (found,) = [one for one in tables if f"\\label{{{label}}}" in one]
    headings, _, body = found[found.index("\\toprule") :].partition("\\midrule")
    return headings, body.partition("\\bottomrule")[0]


def result_differences(source: str, name: str) -> Iterator[str]:
    """Read the source as words: a model, a depth, a level, then pairs of values in the order of
    data sets.
    """
    keys = ("model", "layers", "gamma_train", "dataset", "objective")
    typed = {tuple(row[key].lower() for key in keys): row for row in rows(name)}
    headings, body = table(source, RESULTS[name])
    datasets = re.findall(r"multicolumn\{2\}\{c\}\{\\textbf\{(\w+)\}\}", headings)
    columns = [(dataset, objective) for dataset in datasets for objective in ("constrained", "erm")]
    model = layers = ""
    for row in body.split(r"\\"):
        for word in re.findall(r"multirow\[c\]\{\d+\}\{\*\}\{\\textbf\{(\w+)\}\}", row):
            model, layers = (model, word) if word.isdigit() else (word, layers)
        values = re.findall(r"(\\textbf\{)?(\d+\.\d+)\}?", re.sub(r"\\multirow.*?\}\}", "", row))
        for column, (bold, number) in zip(columns, values[1:], strict=bool(values)):
            place = (model, layers, values[0][1], *column)
            found = typed.pop(tuple(map(str.lower, place)), None)
            printed = (number, "yes" if bold else "no")
            if found is None or (found["value"], found["bold"]) != printed:
                yield f"{name}: {' '.join(place)}: the paper has {printed}, not {found}"
    yield from (f"{name}: {key} is not in the paper" for key in typed)


def parameter_differences(source: str, name: str) -> Iterator[str]:
    """Compare the numbers of each row in order, whatever stands between them."""
    text = re.sub(r"\\multirow\{\d+\}\{\*\}", "", table(source, PARAMETERS[name])[1])
    text = re.sub(r"\$([\d.]+)\s*\\times\s*10\^\{(-?\d+)\}\$", r"\1e\2", text)
    printed = [_numbers(row.split("&")) for row in text.split(r"\\") if "&" in row]
    typed = [_numbers(list(row.values())) for row in rows(name)]
    if printed != typed:
        yield f"{name}: the paper has {printed}, not {typed}"


def _numbers(cells: list[str]) -> list[str]:
    return [cell.strip() for cell in cells if re.fullmatch(r"\s*[\d.]+(e-?\d+)?\s*", cell)]


def text_differences(source: str) -> Iterator[str]:
    """Every number of the text stands somewhere outside of tables."""
    prose = re.sub(r"\\begin\{table\}.*?\\end\{table\}", "", source, flags=re.DOTALL)
    prose = re.sub(r"(?:([\d.]+)\s*\\times\s*|(?<![\d.]))10\^\{(-?\d+)\}", _power, prose)
    for row in rows("text.csv"):
        wanted = row["value"] + (r"\%" if row["unit"] == "%" else "")
        if not re.search(rf"(?<![\d.]){re.escape(wanted)}(?!\d|\.\d)", prose):
            yield f"text.csv: {row['what']}: {wanted} is not in the paper's text"


def _power(found: re.Match[str]) -> str:
    return f"{found[1] or 1}e{found[2]}"


def differences(source: str) -> list[str]:
    """All that differs between the files and the source."""
    found = [line for name in RESULTS for line in result_differences(source, name)]
    found += [line for name in PARAMETERS for line in parameter_differences(source, name)]
    return [*found, *text_differences(source)]


if __name__ == "__main__":
    lines = differences(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print("\n".join(lines) or "every number agrees with the paper")
    sys.exit(bool(lines))
