"""Write the tables and figures of docs/results.md from a report, so that none of its numbers is typed.

    python scripts/results_page.py outputs/reproduce-cpu/report

copies what the page needs of the report's tables to results/tables/ and its figures to docs/images/results/, and writes
every table of the page anew: what stands between `<!-- compare: recipe=… gamma_train=… -->` and `<!-- end -->`. Without
an argument, it writes them from results/tables/ as they are. The words `key=value` choose the rows.

compare   a row for each group of runs: means over seeds, and paired differences with 95 % intervals
levels    the metric at each noise level
summary   a row for each constrained group: its recipe, and its paired differences
claims    the paper's claims, with what the runs say
search    the trials of a search: scores on validation data

README.md has such tables too.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results.md"
PAGES = (PAGE, ROOT / "README.md")
TABLES = ROOT / "results" / "tables"
_IMAGES = "images/results"
_BLOCK = re.compile(r"^(<!-- (\w+):? ?(.*?) -->)\n(?:(?!<!-- ).*\n)*(<!-- end -->)$", re.MULTILINE)
_GROUP = ["recipe", "objective", "variant"]
_COPIED = ("table", "paired", "curves", "decision", "decision_correlations", "claims")
_ORDER = {"erm": 0, "supervised": 1, "constrained": 2}


# ---------------------------------------------------------------- from a report to results/tables


def copy_tables(report: Path) -> None:
    """Copy the report's tables, without differences at single levels and paths of this machine."""
    TABLES.mkdir(parents=True, exist_ok=True)
    for name in _COPIED:
        if not (report / f"{name}.csv").is_file():
            continue
        table = pd.read_csv(report / f"{name}.csv")
        if name == "paired":
            table = table[table["quantity"] != "metric"]
        table.to_csv(TABLES / f"{name}.csv", index=False, float_format="%.6g")
    trials = [_trials(file) for file in sorted(report.parent.glob("sweeps/*/*/trials_wide.csv"))]
    if trials:
        pd.concat(trials).to_csv(TABLES / "trials.csv", index=False, float_format="%.6g")


def _trials(file: Path) -> pd.DataFrame:
    """The finished trials of a sweep, with the settings that it searched in one column, and the group of each run."""
    table = pd.read_csv(file, dtype={"setting": str}).fillna({"setting": ""})
    table = table[table["state"] == "finished"]
    keys = [name for name in table if "." in name and table[name].nunique() > 1]
    said = [", ".join(f"{key} {value:.4g}" for key, value in row[keys].dropna().items()) for _, row in table.iterrows()]
    infos = [json.loads((file.parents[3] / run / "run.json").read_text(encoding="utf-8")) for run in table["run"]]
    name, recipe = file.parent.name.rpartition("-")[0], file.parent.parent.name
    columns = table[["setting", "arm", "trial", "score", "run"]]
    return columns.assign(search=name, recipe=recipe, settings=said, variant=[info["variant"] for info in infos])


def copy_figures(report: Path, page: str) -> None:
    """Copy the figures that the page shows."""
    for name in re.findall(rf"\({_IMAGES}/([\w.-]+\.png)\)", page):
        source, target = report / "figures" / name, PAGE.parent / _IMAGES / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


# ---------------------------------------------------------------- from results/tables to the page


def rendered(page: str, tables: Path = TABLES) -> str:
    """The page with every table written anew."""

    def block(found: re.Match[str]) -> str:
        begin, kind, words, end = found.groups()
        wanted = dict(word.split("=", 1) for word in words.split())
        return f"{begin}\n\n{KINDS[kind](tables, wanted)}\n\n{end}"

    return _BLOCK.sub(block, page)


def _read(tables: Path, name: str, wanted: dict[str, str]) -> pd.DataFrame:
    """The rows of a table that have the wanted values; numbers are compared as numbers."""
    table = pd.read_csv(tables / f"{name}.csv", keep_default_na=False, na_values=[""])
    for key, value in wanted.items():
        if key in table:
            is_number = pd.api.types.is_numeric_dtype(table[key])
            table = table[table[key] == (float(value) if is_number else value)]
    return table


def _groups(tables: Path, wanted: dict[str, str]) -> pd.DataFrame:
    """The evaluated groups of runs by objective, each named after its arm in a sweep."""
    groups = _read(tables, "table", wanted)
    groups = groups[groups["evaluated"] > 0]
    arms: dict[tuple[str, str], str] = {}
    if (tables / "trials.csv").is_file():
        for _, trial in _read(tables, "trials", {}).iterrows():
            name = trial["arm"] if pd.isna(trial["setting"]) else f"{trial['arm']}, {trial['setting']}"
            arms.setdefault((trial["recipe"], trial["variant"]), name)
    keys = zip(groups["recipe"], groups["variant"], groups["label"], strict=True)
    named = groups.assign(label=[arms.get((recipe, variant), label) for recipe, variant, label in keys])
    return named.sort_values("objective", key=lambda names: names.map(_ORDER), kind="stable")


def compare(tables: Path, wanted: dict[str, str]) -> str:
    """The groups of runs with their means, and their paired differences to ERM and supervised."""
    groups = _groups(tables, wanted)
    paired = _read(tables, "paired", {**wanted, "quantity": "ood_mean"})
    decided = _read(tables, "decision", wanted) if (tables / "decision.csv").is_file() else pd.DataFrame()
    rows = []
    for _, group in groups.iterrows():
        mine = paired[(paired[_GROUP] == group[_GROUP]).all(axis=1)]
        row = {
            "runs": group["label"],
            "seeds": f"{group['evaluated']:g}",
            **({} if pd.isna(group["id_mean"]) else {"ID": f"{group['id_mean']:.3f}"}),
            "OOD": f"{group['ood_mean']:.3f}",
            **({f"AUC, {group['range']}": f"{group['auc']:.3f}"} if group["metric"] == "accuracy" else {}),
            **{f"OOD − {other}": _difference(mine[mine["against"] == other]) for other in ("erm", "supervised")},
        }
        if len(decided):
            same = decided[(decided[_GROUP] == group[_GROUP]).all(axis=1)]
            row["decides at layer"] = ", ".join(f"{layer:g}" for layer in same.sort_values("seed")["decision_layer"])
            row["layers that lower the loss"] = f"{same['descending_share'].mean():.0%}" if len(same) else ""
        rows.append(row)
    return _markdown(rows)


def summary(tables: Path, wanted: dict[str, str]) -> str:
    """The constrained groups of all recipes, or those of some `arms`, with their differences."""
    groups = _groups(tables, wanted)
    paired = _read(tables, "paired", {**wanted, "quantity": "ood_mean"})
    arms = wanted.get("arms", "").split(",")
    rows = []
    for _, group in groups[groups["objective"] == "constrained"].iterrows():
        if arms != [""] and group["label"].split(",")[0] not in arms:
            continue
        mine = paired[(paired[_GROUP] == group[_GROUP]).all(axis=1)]
        by_other = {other: mine[mine["against"] == other] for other in ("erm", "supervised")}
        row = {"experiment": group["recipe"], "constraints": group["label"], "seeds": f"{group['evaluated']:g}"}
        row[f"{group['metric']} OOD"] = f"{group['ood_mean']:.3f}"
        rows.append(row | {f"minus {other}": _difference(found) for other, found in by_other.items()})
    return _markdown(rows)


def _difference(rows: pd.DataFrame) -> str:
    """A difference with its interval, bold if it excludes 0; empty if there is none."""
    if rows.empty:
        return ""
    row = rows.iloc[0]
    text = f"{row['difference']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})"
    return f"**{text}**" if row["low"] > 0 or row["high"] < 0 else text


def levels(tables: Path, wanted: dict[str, str]) -> str:
    """The mean metric over seeds at each noise level."""
    curves = _read(tables, "curves", wanted)
    rows = []
    for _, group in _groups(tables, wanted).iterrows():
        mine = curves[(curves[_GROUP] == group[_GROUP]).all(axis=1)].sort_values("gamma")
        means = {f"γ = {row['gamma']:g}": f"{row['mean']:.3f}" for _, row in mine.iterrows()}
        rows.append({"runs": group["label"]} | means)
    return _markdown(rows)


def claims(tables: Path, wanted: dict[str, str]) -> str:
    """Each claim of the paper once: its figure, the verdict against ERM and against supervised, and the settings."""
    found = _read(tables, "claims", wanted)
    rows = []
    for name, mine in found.groupby("claim", sort=False):
        verdicts = mine.fillna({"against": ""}).groupby("against", sort=False)
        against = {str(other): part for other, part in verdicts}
        main = against.get("erm", against.get("", mine))
        supervised = against.get("supervised")
        rows.append(
            {
                "claim": name,
                "in words": mine["statement"].iloc[0],
                "the paper": mine["paper"].iloc[0],
                "verdict": main["verdict"].iloc[0],
                "settings for, against, unclear": _outcomes(main),
                "verdict against supervised": "" if supervised is None else supervised["verdict"].iloc[0],
            }
        )
    return _markdown(rows)


def _outcomes(rows: pd.DataFrame) -> str:
    return ", ".join(str((rows["outcome"] == outcome).sum()) for outcome in ("for", "against", "unclear"))


def search(tables: Path, wanted: dict[str, str]) -> str:
    """The trials of a search in order, the best of each arm in bold."""
    trials = _read(tables, "trials", wanted)
    best = trials.groupby("arm")["score"].transform("max")
    scores = [
        f"**{score:.4f}**" if score == top else f"{score:.4f}" for score, top in zip(trials["score"], best, strict=True)
    ]
    shown = zip(trials["arm"], trials["settings"], scores, strict=True)
    return _markdown([{"arm": arm, "settings": settings, "score": score} for arm, settings, score in shown])


def _markdown(rows: Sequence[dict[str, str]]) -> str:
    if not rows:
        return "*No runs yet.*"
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, ["---"] * len(columns), *([row.get(name, "") for name in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


KINDS: dict[str, Callable[[Path, dict[str, str]], str]] = {
    "compare": compare,
    "levels": levels,
    "summary": summary,
    "claims": claims,
    "search": search,
}


if __name__ == "__main__":
    if len(sys.argv) == 2:
        copy_tables(Path(sys.argv[1]))
        copy_figures(Path(sys.argv[1]), PAGE.read_text(encoding="utf-8"))
    for page in PAGES:
        page.write_text(rendered(page.read_text(encoding="utf-8")), encoding="utf-8")
