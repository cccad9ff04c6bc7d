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
#: The file, its table's label in the source, and how the source spells what the file spells
#: otherwise.
RESULTS = {
    "rmse.csv": ("tab:full_auc_video", {"Shanghaitech": "ShanghaiTech"}),
    "accuracy_auc.csv": ("tab:full_auc_language", {"IMDB": "IMDb"}),
}
PARAMETERS = {
    "dual_video.csv": "tab:dual_hyperparameters_video",
    "dual_language.csv": "tab:dual_hyperparameters_language",
    "dual_llama.csv": "tab:hyperparameters_llm",
}


def rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def tabular(source: str, label: str) -> str:
    """The text of the table that has a label."""
    tables = re.findall(r"\\begin\{table\}.*?\\end\{table\}", source, re.DOTALL)
    (found,) = [table for table in tables if f"\\label{{{label}}}" in table]
    return found[found.index("\\midrule") : found.index("\\bottomrule")]


def result_differences(source: str, name: str) -> Iterator[str]:
    """Read the source as words: a model, a depth, a level, then pairs of values in the order of
    data sets.
    """
    label, spelling = RESULTS[name]
    typed = {
        (r["model"], r["layers"], r["gamma_train"], r["dataset"], r["objective"]): r
        for r in rows(name)
    }
    whole = source[: source.index(f"\\label{{{label}}}")]
    heading = re.findall(
        r"multicolumn\{2\}\{c\}\{\\textbf\{(\w+)\}\}", whole[whole.rindex("\\toprule") :]
    )
    datasets = [spelling.get(dataset, dataset) for dataset in heading]
    columns = [(dataset, objective) for dataset in datasets for objective in ("constrained", "erm")]
    model = layers = ""
    for row in tabular(source, label).split(r"\\"):
        for word in re.findall(r"multirow\[c\]\{\d+\}\{\*\}\{\\textbf\{(\w+)\}\}", row):
            model, layers = (model, word) if word.isdigit() else (word, layers)
        values = re.findall(r"(\\textbf\{)?(\d+\.\d+)\}?", re.sub(r"\\multirow.*?\}\}", "", row))
        if not values:
            continue
        (_, level), *numbers = values
        for (dataset, objective), (bold, number) in zip(columns, numbers, strict=True):
            found = typed.pop((model, layers, level, dataset, objective), None)
            printed = (number, "yes" if bold else "no")
            if found is None or (found["value"], found["bold"]) != printed:
                yield f"{name}: {model} {layers} {level} {dataset} {objective}: the paper has {printed}, not {found}"
    yield from (f"{name}: {key} is not in the paper" for key in typed)


def parameter_differences(source: str, name: str) -> Iterator[str]:
    """Compare the numbers of each row in order, whatever stands between them."""
    text = re.sub(r"\\multirow\{\d+\}\{\*\}", "", tabular(source, PARAMETERS[name]))
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
    prose = re.sub(r"([\d.]+)\s*\\times\s*10\^\{(-?\d+)\}", r"\1e\2", prose)
    prose = re.sub(r"(?<![\d.])10\^\{(-?\d+)\}", r"1e\1", prose)
    for row in rows("text.csv"):
        wanted = row["value"] + (r"\%" if row["unit"] == "%" else "")
        if not re.search(rf"(?<![\d.]){re.escape(wanted)}(?!\d|\.\d)", prose):
            yield f"text.csv: {row['what']}: {wanted} is not in the paper's text"


def differences(source: str) -> list[str]:
    """All that differs between the files and the source."""
    found = [line for name in RESULTS for line in result_differences(source, name)]
    found += [line for name in PARAMETERS for line in parameter_differences(source, name)]
    return [*found, *text_differences(source)]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: python scripts/check_paper_numbers.py paper.tex", file=sys.stderr)
        sys.exit(2)
    lines = differences(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(
        "\n".join(lines)
        or f"{sum(len(rows(path.name)) for path in FOLDER.glob('*.csv'))} rows agree with the paper"
    )
    sys.exit(bool(lines))
