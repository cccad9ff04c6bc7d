"""privacy.csv: what noise on token embeddings promises a user, as ε of the Gaussian mechanism, next to the metric.

The mechanism releases the noisy embeddings of a text, x̃_t = x_t + N(0, σ²I) with σ = γ·σ_x, as evaluation computes
them; whatever the model does with them is post-processing and reveals no more. The table of embeddings is public. How
much one release reveals depends on how far two neighbouring texts are apart, Δ:

token           one token replaced by any other: Δ = the largest distance D between two rows of the table
clipped token   one token replaced by any vector of norm up to C, the largest norm of a row: Δ = 2C
text            all n tokens replaced, n of the longest test text: Δ = √n·D

No embedding is longer than C, so clipping to C changes none, and the metric is the one that was measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cudt.data.loading import batches
from cudt.method.privacy import NOISE, REASONABLE, UNIT, epsilon_at, noise_multiplier
from cudt.models.layer_losses import LayerwiseLosses
from cudt.noise.source import usable
from cudt.runs import checksums
from cudt.runs.run import Run, check_same_test
from cudt.runs.tables import TABLES, file_of
from cudt.training import trained
from cudt.utils.device import DeviceName
from cudt.utils.errors import UserError
from cudt.utils.shown import as_command

#: The highest noise level that the paper trains with.
PAPER_GAMMA = 1.0
_CHUNK = 1024


@dataclass(frozen=True)
class Embeddings:
    """The sizes of a table of token embeddings, and the length of the longest test text."""

    n_rows: int
    norms: tuple[float, float, float]
    """The median norm of a row, the 95th percentile, and the largest norm C."""
    largest_distance: float
    """D, between two rows."""
    longest_text: int
    """Number of tokens."""

    @property
    def sensitivities(self) -> dict[str, float]:
        """Δ of each unit of privacy."""
        return {
            UNIT: self.largest_distance,
            "clipped token": 2 * self.norms[-1],
            "text": math.sqrt(self.longest_text) * self.largest_distance,
        }


def check(run: Run) -> None:
    """Refuse a run that is not finished, damaged, not evaluated under Gaussian noise, or that is about videos."""
    info = run.finished_info()
    if run.other_data is not None:
        raise UserError(f"'{run.results}': `cudt privacy` is about the run's own data; give '{run.results.parent}'")
    if info.has_pictures:
        raise UserError(
            f"'{run.path}': task {run.recipe.settings.task.name} has no tokens; `cudt privacy` is about noise on token "
            "embeddings: give a run on texts"
        )
    if not checksums.is_lost(run.results, file_of("privacy")):
        run.check_file(file_of("privacy"))
    if _curve(run).empty:
        command = as_command("eval-ood", run.path, "--perturbation", NOISE)
        raise UserError(f"'{run.path}': not evaluated under Gaussian noise; run `{command}`")


def is_current(run: Run, delta: float) -> bool:
    """Whether privacy.csv has the rows of a δ for the levels and values that ood.csv has now."""
    if checksums.is_lost(run.results, file_of("privacy")):
        return False
    table, curve = run.read_table("privacy"), _curve(run)
    rows = table[(table["delta"] == delta) & (table["unit"] == UNIT)].set_index("gamma")["value"]
    return not rows.empty and rows.index.equals(curve.index) and bool(np.allclose(rows, curve, equal_nan=True))


def write_privacy(run: Run, delta: float, device: DeviceName, data_root: Path | None) -> Embeddings:
    """Write the rows of one δ into privacy.csv; rows of other δ stay. `check` the run first."""
    layerwise = trained.load(run, device, data_root)
    check_same_test(run, layerwise.task.fingerprint(["test"]))
    found = _measure(run, layerwise)
    checksums.forget_lost(run.results, file_of("privacy"))
    run.merge_table("privacy", _rows(run, found, delta), ["delta"])
    return found


def conclusion(run: Run, found: Embeddings, delta: float) -> str:
    """What noise at the paper's level promises for one token, and which level a reasonable promise needs, in words."""
    info, curve = run.finished_info(), _curve(run)
    sigma_x = usable(info.sigma_x.evaluation)
    wanted = noise_multiplier(REASONABLE, delta) * found.largest_distance / sigma_x
    epsilon = epsilon_at(delta, found.largest_distance / (PAPER_GAMMA * sigma_x))
    useless = ": useless as a promise" if epsilon > REASONABLE else ""
    reached = min((gamma for gamma in curve.index if gamma >= wanted), default=None)
    metric = (
        f"the highest level evaluated is γ = {curve.index.max():g}"
        if reached is None
        else f"{info.metric.name} at γ = {reached:g} is {curve[reached]:.4f}"
    )
    return (
        f"At γ = {PAPER_GAMMA:g}, the most that the paper trains with, ε = {epsilon_text(epsilon)} for one token"
        f"{useless}. ε = {REASONABLE:g}, the most that is called reasonable, needs γ = {wanted:.3g}; {metric}."
    )


def epsilon_text(epsilon: float) -> str:
    """ε with three digits, or as a whole number."""
    return "∞" if math.isinf(epsilon) else f"{epsilon:,.0f}" if epsilon >= 100 else f"{epsilon:.3g}"


def largest_distance(table: Tensor) -> float:
    """The largest Euclidean distance between two rows.

    With r the distance to the mean, |x − y| ≤ r_x + r_y: rows with the largest r are compared first, and the search
    ends where 2r is no larger than what was found.
    """
    radii, order = torch.linalg.vector_norm(table - table.mean(0), dim=1).sort(descending=True)
    rows, largest = table[order], 0.0
    for start in range(0, len(rows), _CHUNK):
        if 2 * float(radii[start]) <= largest:
            break
        largest = max(largest, float(torch.cdist(rows[start : start + _CHUNK], rows[start:]).max()))
    return largest


@torch.no_grad()
def _measure(run: Run, layerwise: LayerwiseLosses) -> Embeddings:
    # In double precision: a distance is a difference of numbers that are nearly equal.
    table = _table(run, layerwise).double()
    norms = torch.linalg.vector_norm(table, dim=1)
    median, upper = torch.quantile(norms, torch.tensor([0.5, 0.95], dtype=norms.dtype, device=norms.device)).tolist()
    return Embeddings(
        len(table), (median, upper, float(norms.max())), largest_distance(table), _longest_text(run, layerwise)
    )


def _table(run: Run, layerwise: LayerwiseLosses) -> Tensor:
    """The embedding of every token of the vocabulary that has one, as noise is added to it."""
    task, model = layerwise.task, layerwise.model
    size = getattr(task, "vocabulary_size", None) or (0 if task.tokenizer is None else len(task.tokenizer))
    device = next(layerwise.parameters()).device
    if size:
        # A tokenizer may have added tokens without an embedding, which texts do not contain.
        tokens = torch.arange(min([size, *_table_sizes(layerwise, device)]), device=device)
        forwards, backwards = (_looked_up(layerwise, order) for order in (tokens, tokens.flip(0)))
        if torch.equal(forwards, backwards.flip(0)):
            return forwards
    raise UserError(
        f"'{run.path}': model {run.recipe.settings.model.name} ({type(model).__name__}) does not look up one embedding "
        "for each token, so noise on it has no sensitivity that cudt could measure"
    )


def _table_sizes(layerwise: LayerwiseLosses, device: torch.device) -> list[int]:
    """The number of rows of each table of embeddings that the model looks tokens up in."""
    sizes: list[int] = []

    def note(table: torch.nn.Embedding, given: tuple[Tensor, ...]) -> None:
        sizes.append(table.num_embeddings)

    tables = [module for module in layerwise.model.modules() if isinstance(module, torch.nn.Embedding)]
    hooks = [table.register_forward_pre_hook(note) for table in tables]
    try:
        _looked_up(layerwise, torch.zeros(1, dtype=torch.long, device=device))
    finally:
        for hook in hooks:
            hook.remove()
    return sizes


def _looked_up(layerwise: LayerwiseLosses, tokens: Tensor) -> Tensor:
    batch = {"input_ids": tokens.unsqueeze(0), "attention_mask": torch.ones_like(tokens).unsqueeze(0)}
    return layerwise.model.signal(batch)[0][0]


def _longest_text(run: Run, layerwise: LayerwiseLosses) -> int:
    task, size = layerwise.task, run.recipe.settings.evaluation.batch_size
    read = batches(task, task.examples("test"), size, torch.device("cpu"))
    return max(int(batch["attention_mask"].sum(1).max()) for batch in read)


def _curve(run: Run) -> pd.Series[float]:
    """The metric at each level of Gaussian noise, averaged over noise seeds."""
    ood = run.read_table("ood")
    rows = ood[(ood["perturbation"] == NOISE) & (ood["metric"] == run.finished_info().metric.name)]
    return rows.groupby("gamma")["value"].mean()


def _rows(run: Run, found: Embeddings, delta: float) -> pd.DataFrame:
    info = run.finished_info()
    rows = []
    for gamma, value in _curve(run).items():
        sigma = float(str(gamma)) * info.sigma_x.evaluation
        for unit, sensitivity in found.sensitivities.items():
            epsilon = epsilon_at(delta, sensitivity / sigma if sigma else math.inf)
            rows.append((gamma, sigma, unit, sensitivity, delta, epsilon, info.metric.name, value))
    return pd.DataFrame(rows, columns=TABLES["privacy"])
