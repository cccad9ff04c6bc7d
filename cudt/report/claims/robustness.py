"""C3, C4 and the cost in distribution: how constrained models compare with others under noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from cudt.report.claims.base import Claim, Evidence, Interval, Runs, mean_metric, sign_of, too_few
from cudt.report.comparable import CONSTRAINED, SIDES, Pair
from cudt.report.published import PAPER_TABLES, printed_numbers

#: Accuracy that constrained models may lose in distribution, as a share: what the paper reports at most.
TOLERATED_LOSS = 0.003
_WHERE = {"ood_mean": "OOD", "id_mean": "ID"}


def robustness(runs: Runs, *, metric: str, noise: str) -> list[Evidence]:
    """The difference of the mean metric over the OOD levels."""
    found = [pair for pair in runs.pairs if pair.noise == noise and pair.ours[0].metric == metric]
    return [_evidence(runs, pair, "ood_mean") for pair in found]


def cost(runs: Runs) -> list[Evidence]:
    """The difference of the mean metric over the ID levels; an error may grow by the same share as accuracy falls."""
    made = []
    for pair in runs.pairs:
        if pair.noise == pair.ours[0].run.recipe.settings.noise.kind:
            found = _evidence(runs, pair, "id_mean")
            allowed = TOLERATED_LOSS * (1 if pair.ours[0].higher_is_better else found.theirs)
            made.append(replace(found, more_than=-allowed))
    return made


def _evidence(runs: Runs, pair: Pair, quantity: str) -> Evidence:
    """A row of paired.csv as evidence."""
    first, where, table = pair.ours[0], _WHERE[quantity], runs.differences
    wanted = {"recipe": first.recipe, "objective": CONSTRAINED, "variant": first.variant, "perturbation": pair.noise}
    wanted |= {"against": pair.baseline[0].objective, "against_variant": pair.baseline[0].variant}
    rows = table[(table[[*wanted]] == [*wanted.values()]).all(axis=1) & (table["quantity"] == quantity)]
    ours, theirs = (
        float(np.mean([mean_metric(run, pair.noise, where) for run in side])) for side in (pair.ours, pair.baseline)
    )
    common = (runs.setting(first, pair.noise), f"mean {first.metric} {where}")
    if rows.empty:
        nothing = Interval(np.nan, np.nan, np.nan, 0)
        return Evidence(*common, nothing, wanted["against"], ours, theirs, lacking=f"no {where} level in common")
    row = rows.iloc[0]
    ends = sorted(sign_of(first) * row[name] for name in ("low", "high"))
    # Any other interval is over test examples, or over seeds that only one side has.
    common_seeds = {run.seed for run in pair.ours} & {run.seed for run in pair.baseline}
    seeds = int(row["n"]) if row["unit"] == "seeds paired" else min(1, len(common_seeds))
    interval = Interval(sign_of(first) * row["difference"], ends[0], ends[1], seeds)
    return Evidence(*common, interval, wanted["against"], ours, theirs, lacking=row["reason"] or too_few(seeds))


# ---------------------------------------------------------------- the paper's figures


def _printed(index: int, sign: int, what: str) -> str:
    """The median and the range of a table's differences between constrained and ERM, where larger is better."""
    table = printed_numbers(PAPER_TABLES[index])
    each = [sign * (cell[SIDES[0]] - cell[SIDES[1]]) for cell in table.values() if set(SIDES) <= set(cell)]
    n_better = sum(one > 0 for one in each)
    return (
        f"{what}: median {np.median(each):+.3f} in favour of constrained ({min(each):+.3f} to {max(each):+.3f}); "
        f"better in {n_better} of {len(each)} cells"
    )


def _words(text: str) -> Callable[[], str]:
    return lambda: text


_TRAIN = "cudt experiment {} --seeds 0 1 2 --objectives constrained erm supervised"
ORDER = 20
CLAIMS = [
    Claim(
        "C3",
        "Text classifiers lose less accuracy under Gaussian noise on embeddings",
        partial(_printed, 1, 1, "accuracy AUC"),
        partial(robustness, metric="accuracy", noise="gaussian"),
        _TRAIN.format("imdb-minilm") + " --perturbation gaussian",
    ),
    Claim(
        "C3 uniform",
        "The same holds under uniform noise on embeddings",
        _words("a figure: RoBERTa on IMDb, constrained above unconstrained"),
        partial(robustness, metric="accuracy", noise="uniform"),
        _TRAIN.format("imdb-minilm") + " --perturbation uniform",
    ),
    Claim(
        "C3 discrete",
        "The same holds under random changes of the texts",
        _words("a figure: RoBERTa on IMDb, constrained above unconstrained at every level"),
        partial(robustness, metric="accuracy", noise="discrete"),
        _TRAIN.format("imdb-minilm") + " --perturbation discrete",
    ),
    Claim(
        "C3 language models",
        "Instruction-tuned language models lose less token accuracy under Gaussian noise",
        _words("Llama 3.1 8B: wins 69.93 % of comparisons at γ = 1.5, 50 % at γ = 0"),
        partial(robustness, metric="token_accuracy", noise="gaussian"),
        _TRAIN.format("alpaca-smollm") + " --perturbation gaussian",
    ),
    Claim(
        "C4",
        "Video denoisers have a lower error under noise above that of training",
        partial(_printed, 0, -1, "average RMSE"),
        partial(robustness, metric="RMSE", noise="gaussian"),
        _TRAIN.format("ucsd-dust-cpu") + " --perturbation gaussian",
    ),
    Claim(
        "ID cost",
        f"In distribution, constrained models lose at most {100 * TOLERATED_LOSS:.1f} % (of the error, for videos)",
        _words("accuracy: at most 0.3 % lost (ablation of α, RoBERTa on IMDb)"),
        cost,
        _TRAIN.format("imdb-minilm"),
    ),
]
