"""How much of the accuracy under noise is a bias towards one class? From the stored scores of runs with two classes.

    python scripts/class_bias.py outputs/reproduce-cpu DATA_ROOT

writes results/tables/class_bias.csv: for each run and noise level the recall of both classes, and from them, as in
signal detection theory, with z = Φ⁻¹, the hit rate H (recall of class 1) and the rate of false alarms F (1 − recall of
class 0),

    d′ = z(H) − z(F)            how far apart the classes are, in standard deviations of the logit
    bias c = −(z(H) + z(F))/2   how far the threshold is from the middle, to the side of answering class 0
    unbiased = Φ(d′/2)          the accuracy with the threshold in the middle

for logits that are normal with the same variance in both classes, and classes of the same size. It needs the data, for
the true classes, and no weights. Half an example is added to each count, so that a recall of 0 or 1 has a finite z.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pandas as pd

from cudt.noise.base import distribution
from cudt.runs.find import open_run
from cudt.runs.run import Run
from cudt.tasks.base import build_task
from cudt.tasks.classification import Classification

OUT = Path(__file__).parent.parent / "results" / "tables" / "class_bias.csv"
_NORMAL = NormalDist()


def signal(hits: float, n_ones: int, rejections: float, n_zeros: int) -> tuple[float, float]:
    """The unbiased accuracy Φ(d′/2), and the bias c."""
    z_hit = _NORMAL.inv_cdf((hits + 0.5) / (n_ones + 1))
    z_false = _NORMAL.inv_cdf(1 - (rejections + 0.5) / (n_zeros + 1))
    return _NORMAL.cdf((z_hit - z_false) / 2), -(z_hit + z_false) / 2


def of_run(run: Run, classes: Mapping[str, int]) -> list[dict[str, Any]]:
    """A row for each noise level; `classes` are the true ones by the examples' ids."""
    scores = pd.read_parquet(run.results / "examples.parquet")
    scores["class"] = scores["id"].map(classes)
    info, rows = run.finished_info(), []
    for (kind, gamma), level in scores.groupby(["perturbation", "gamma"]):
        ones, zeros = (level[level["class"] == label]["score"] for label in (1, 0))
        unbiased, bias = signal(ones.sum(), len(ones), zeros.sum(), len(zeros))
        row = {"recipe": run.recipe.name, "objective": run.recipe.settings.objective, "variant": info.variant}
        row |= {"seed": run.recipe.settings.seed, "gamma_train": info.gamma_train, "perturbation": kind, "gamma": gamma}
        row |= {"place": distribution(str(kind), float(gamma), info.gamma_train), "accuracy": level["score"].mean()}
        recalls = {"recall_0": zeros.mean(), "recall_1": ones.mean()}
        rows.append({**row, **recalls, "unbiased": unbiased, "bias": bias})
    return rows


def table(out: Path, data_root: Path | None) -> pd.DataFrame:
    """The rows of all evaluated runs below a folder whose task has two classes."""
    known: dict[str, dict[str, int]] = {}
    rows = []
    for file in sorted(out.glob("*/*/examples.parquet")):
        run = open_run(file.parent)
        settings = run.recipe.settings
        if run.finished_info().metric.name != Classification.metric_name:
            continue
        key = settings.task.model_dump_json()
        if key not in known:
            task = build_task(settings.task, data_root, settings.model.tokenizer_source)
            assert isinstance(task, Classification)
            is_binary = task.n_classes == 2
            known[key] = {one.id: one.label for one in task.examples("test")} if is_binary else {}
        if known[key]:
            rows += of_run(run, known[key])
    return pd.DataFrame(rows)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    table(Path(sys.argv[1]), Path(sys.argv[2])).to_csv(OUT, index=False, float_format="%.6g")
