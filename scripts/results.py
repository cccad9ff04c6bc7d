"""Write the tables of docs/results.md from the runs, so that none of their numbers is typed.

    python scripts/results.py outputs/results

reads the runs in a folder (`make results` restores them from results/runs/), writes their report
there, and fills in each table of the page between `<!-- table: NAME -->` and `<!-- end -->`.
results/page.yaml says which runs a row is about.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import stdev

import yaml

from cudt import report
from cudt.config.levels import training_level
from cudt.report import compare, frames
from cudt.report.paired import Differences, over_levels

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/results.md"
Row = dict[str, str]
LISTED = yaml.safe_load((ROOT / "results/page.yaml").read_text(encoding="utf-8"))
NAMES = {"erm": "ERM", "supervised": "supervised", "constrained": "constrained"}


class Results:
    """Runs that were tested on the data of their own task, or on others."""

    def __init__(self, folder: Path, data: str = frames.OWN) -> None:
        self.frames = frames.read([folder], data)
        compare.assign(self.frames)
        self.differences = Differences(self.frames)

    def runs(self, where: str, descent: str, noise: str = "gaussian") -> dict[str, list[int]]:
        """The evaluated runs of each objective in a row of the page."""
        every, found = LISTED["where"][where], dict[str, list[int]]()
        own = {f"descent.{key}": value for key, value in LISTED["descent"][descent].items()}
        for row in frames.each(self.frames.runs):
            wanted = {**every, **own} if row.objective == "constrained" else every
            known = {**row.settings, "recipe": row.recipe}
            if noise in row.noises and all(known.get(key) == one for key, one in wanted.items()):
                found.setdefault(row.objective, []).append(row.Index)
        return found

    def mean(self, runs: Sequence[int], noise: str, levels: Sequence[float]) -> str:
        curves = [self.frames.curve(run, noise) for run in runs]
        value = sum(curve[level] for curve in curves for level in levels) / len(runs) / len(levels)
        return number(value, 2 if value > 1 else 3)

    def above(self, run: int, noise: str, level: float) -> list[float]:
        return [one for one in self.frames.curve(run, noise) if one > level]

    def minus(
        self, ours: list[int], other: list[int], noise: str, gamma: float | None = None
    ) -> str:
        """The difference with its 95 % interval: at a level, or over those above γ_train of ours."""
        key = ("ood_mean",) if gamma is None else ("metric", gamma)
        rows = self.differences.rows(noise, ours, other)
        row = next(one for one in rows if (one["quantity"], one["gamma"])[: len(key)] == key)
        digits = 2 if row["metric"] == "RMSE" else 3
        middle, *ends = (number(row[one], digits, "+") for one in ("difference", "low", "high"))
        text = f"{middle} ({' to '.join(ends)})"
        return f"**{text}**" if row["low"] > 0 or row["high"] < 0 else text

    def compared(self, where: str, descent: str, noise: str = "gaussian") -> Row:
        """Means of all objectives above γ_train, and constrained against the others."""
        runs = self.runs(where, descent, noise)
        ours = runs["constrained"]
        trained = training_level(noise, self.frames.row(ours[0])["gamma_train"])
        levels = self.above(ours[0], noise, trained)
        row = {name: self.mean(runs[key], noise, levels) for key, name in NAMES.items()}
        for one in ("erm", "supervised"):
            row[f"constrained − {NAMES[one]}"] = self.minus(ours, runs[one], noise)
        return {"seeds": str(len(ours)), **row}

    def spread(self, where: str, descent: str) -> Row:
        """The standard deviation over seeds of the area under each objective's curve."""
        row, noise = {}, "gaussian"
        for key, runs in self.runs(where, descent).items():
            curves = [self.frames.curve(run, noise) for run in runs]
            row[key] = number(stdev(over_levels(one, noise, 0.0)["auc"] for one in curves), 3)
        return {"seeds": str(len(curves)), **{name: row[key] for key, name in NAMES.items()}}

    def noise_in_training(self) -> Iterator[Row]:
        """ERM that met more noise in training, and runs that met less, above the higher level."""
        for noise in ("gaussian", "uniform", "discrete"):
            less, more = (self.runs(one, "full", noise) for one in ("mean", "mean, γ .8"))
            groups = {"ERM .4": less["erm"], "constrained .4": less["constrained"]}
            levels = self.above(more["erm"][0], noise, training_level(noise, 0.8))
            row = {"tested under": noise}
            for name, runs in {**groups, "ERM .8": more["erm"]}.items():
                row[name] = self.mean(runs, noise, levels)
            for name, runs in groups.items():
                row[f"ERM .8 − {name}"] = self.minus(more["erm"], runs, noise)
            yield row

    def instructions(self) -> Iterator[Row]:
        """Every objective on Alpaca, level by level, and ERM that met more noise in training."""
        runs, noise = self.runs("alpaca", "any"), "gaussian"
        ours, more = runs["constrained"], self.runs("alpaca, γ .75", "any")["erm"]
        for gamma in (0.0, 0.6, 0.9, 1.2, 1.5, 1.8, 2.1):
            row = {name: self.mean(runs[one], noise, [gamma]) for one, name in NAMES.items()}
            for one in ("erm", "supervised"):
                row[f"constrained − {NAMES[one]}"] = self.minus(ours, runs[one], noise, gamma)
            row["ERM .75"] = self.mean(more, noise, [gamma])
            row["ERM .75 − constrained"] = self.minus(more, ours, noise, gamma)
            yield {"γ": f"{gamma:g}", **row}


def number(value: float, digits: int, sign: str = "") -> str:
    """A number as the page writes it: .689, −.09, 16.10."""
    return re.sub(r"^([+−]?)0\.", r"\1.", f"{value:{sign}.{digits}f}".replace("-", "−"))


def tables(folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """The name and the rows of every table of the page."""
    own, rows = Results(folder), LISTED["tables"]
    others = {name: Results(folder, name.lower()) for name in ("Avenue", "ShanghaiTech")}
    for name in ("imdb", "mnli", "ablations"):
        yield name, [{"setting": label, **own.compared(*which)} for label, *which in rows[name]]
    yield "seeds", [{"experiment": label, **own.spread(*which)} for label, *which in rows["seeds"]]
    yield "noise", [*own.noise_in_training()]
    yield "instructions", [*own.instructions()]
    yield (
        "video",
        [
            {"model": label, "tested on": name, **one.compared(*which)}
            for label, *which in rows["video"]
            for name, one in {"UCSD": own, **others}.items()
        ],
    )


if __name__ == "__main__":
    chosen = Path(sys.argv[1])
    report.write([chosen], chosen / "report")
    page = PAGE.read_text(encoding="utf-8")
    for name, found in tables(chosen):
        cells = [[*found[0]], ["---"] * len(found[0]), *([*row.values()] for row in found)]
        text = "\n".join(f"| {' | '.join(row)} |" for row in cells)
        block = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        page, count = re.subn(block, rf"\1\n{text}\n\n\2", page, flags=re.DOTALL)
        assert count == 1, f"{PAGE} has {count} tables '{name}'"
    PAGE.write_text(page, encoding="utf-8")
