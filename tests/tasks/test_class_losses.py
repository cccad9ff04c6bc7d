from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from cudt.config.schema import Dual
from cudt.config.tasks import LossName
from cudt.method.descent import LayerwiseDescent
from cudt.tasks.class_losses import LOSSES
from cudt.tasks.reviews import Config, Reviews
from tests.conftest import tiny_recipe, train_quietly

NAMES: list[LossName] = ["cross_entropy", "brier", "clipped_cross_entropy"]


def literal(name: str, p: Sequence[float], label: int) -> float:
    if name == "brier":
        return sum((value - (label == k)) ** 2 for k, value in enumerate(p))
    least = 1 / (100 * len(p)) if name == "clipped_cross_entropy" else 0.0
    return -math.log(max(p[label], least))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_losses_equal_their_formulas(name, n_classes):
    generator = torch.Generator().manual_seed(n_classes)
    logits = 5 * torch.randn(200, n_classes, dtype=torch.double, generator=generator)
    labels = torch.randint(n_classes, (200,), generator=generator)
    ours = LOSSES[name].of_answers(logits, labels)
    rows = zip(logits.softmax(-1).tolist(), labels.tolist(), strict=True)
    assert ours.tolist() == pytest.approx([literal(name, p, label) for p, label in rows], abs=1e-9)


@pytest.mark.parametrize(
    ("name", "bound"), [("brier", 2.0), ("clipped_cross_entropy", math.log(300))]
)
def test_bounded_losses_reach_their_bound_and_not_more(name, bound):
    logits, labels = torch.tensor([[80.0, -80.0, 0.0], [0.0, 0.0, 80.0]]), torch.tensor([1, 2])
    assert LOSSES[name].of_answers(logits, labels).tolist() == pytest.approx([bound, 0], abs=1e-6)
    assert LOSSES["cross_entropy"].of_answers(logits, labels)[0].item() == pytest.approx(160)


def answers(shares: Sequence[float]) -> np.ndarray:
    """Answers (p_1, p_2, p_3) all over the simplex, and the shares with none, one or two classes
    left out."""
    grid = [(i, j, 200 - i - j) for i in range(201) for j in range(201 - i)]
    chosen = [
        [share * (label in kept) for label, share in enumerate(shares)]
        for kept in ((0, 1, 2), (0, 1), (0,))
    ]
    rows = np.array([*grid, *chosen], dtype=float)
    return rows / rows.sum(1, keepdims=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "shares", [(0.5, 0.3, 0.2), (0.98, 0.019, 0.001), (0.999, 0.0005, 0.0005), (0.6, 0.4, 0.0)]
)
def test_the_loss_of_guessing_is_that_of_the_best_constant_answer(name, shares):
    p = answers(shares)
    least = 1 / 300 if name == "clipped_cross_entropy" else 1e-300
    mean = np.zeros(len(p))
    for label, share in enumerate(shares):
        target = np.eye(3)[label]
        mean += share * (
            ((p - target) ** 2).sum(1)
            if name == "brier"
            else -np.log(np.maximum(p[:, label], least))
        )
    assert LOSSES[name].of_guessing(shares) == pytest.approx(mean.min(), abs=1e-12)


# ---------------------------------------------------------------- exact solutions of constrained
# problems


def mean_loss(name: LossName, p: torch.Tensor, shares: Sequence[float]) -> torch.Tensor:
    """The mean loss of the answer (1 − p, p), over classes of the given shares; a third class gets
    next to nothing."""
    logits = torch.stack([(1 - p).log(), p.log(), torch.full_like(p, -60)])[: len(shares)]
    losses = LOSSES[name].of_answers(logits.expand(len(shares), -1), torch.arange(len(shares)))
    return losses @ torch.tensor(shares, dtype=torch.double)


def solve(
    descent: LayerwiseDescent, losses: Callable[[torch.Tensor], torch.Tensor], start: float
) -> float:
    p = torch.tensor(start, dtype=torch.double, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.02)
    for _ in range(1500):
        optimizer.zero_grad()
        descent.lagrangian(f := losses(p)).backward()
        descent.dual_step(f)
        optimizer.step()
    return p.item()


def test_the_exact_optimum_under_brier_scores():
    # f_1 = 2(p − 0.8)² + 0.32 ≤ 0.7·f_0 = 0.35 and f_2 = 2(p − 0.98)² + const: p = 0.8 + √0.015 on
    # the boundary.
    descent = LayerwiseDescent(2, [0.3, 0.1], 0.5, dual=Dual(optimizer="sgd", learning_rate=0.5))
    found = solve(
        descent,
        lambda p: torch.stack(
            [mean_loss("brier", p, [0.2, 0.8]), mean_loss("brier", p, [0.02, 0.98])]
        ),
        0.7,
    )
    p = 0.8 + math.sqrt(0.015)
    assert found == pytest.approx(p, abs=1e-4)
    assert descent.multiplier_values.tolist() == pytest.approx(
        [(0.98 - p) / (p - 0.8), 0], abs=1e-3
    )


def test_the_exact_optimum_under_clipped_cross_entropies():
    # A fifth of layer 1's examples cannot be right: clipped, they cost 0.2·log 300, not 0.2·60, and
    # move nothing. Otherwise f_1 = −0.15·log(1 − p) − 0.65·log p, which must not be above its value
    # at p = 0.88.
    p = 0.88
    bound = 0.2 * math.log(300) - 0.15 * math.log(1 - p) - 0.65 * math.log(p)
    descent = LayerwiseDescent(
        2, [0.5, 0.1], 2 * bound, dual=Dual(optimizer="sgd", learning_rate=0.5)
    )

    def losses(p: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [
                mean_loss("clipped_cross_entropy", p, [0.15, 0.65, 0.2]),
                mean_loss("clipped_cross_entropy", p, [0.02, 0.98]),
            ]
        )

    assert solve(descent, losses, 0.7) == pytest.approx(p, abs=1e-3)
    slopes = 0.15 / (1 - p) - 0.65 / p, 0.02 / (1 - p) - 0.98 / p
    assert descent.multiplier_values.tolist() == pytest.approx(
        [-slopes[1] / slopes[0], 0], abs=1e-2
    )


# ---------------------------------------------------------------- in tasks and recipes


@pytest.mark.parametrize("name", NAMES)
def test_a_task_uses_its_loss_and_the_reference_follows(name):
    task = Reviews(Config(name="reviews", train=60, validation=10, test=10, loss=name))
    batch = task.collate(task.examples("train")[:4])
    answer = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(task.losses(answer, batch), LOSSES[name].of_answers(answer, batch["labels"]))
    share = sum(task.train_labels()) / 60
    assert task.reference_loss() == pytest.approx(LOSSES[name].of_guessing([1 - share, share]))


def test_a_run_is_trained_and_judged_with_the_loss_of_its_recipe(tmp_path):
    info = train_quietly(tiny_recipe("task.loss=brier"), tmp_path).finished_info()
    assert info.reference == pytest.approx(0.5, abs=0.01)
    assert all(0.2 < verdict.loss < 0.8 for verdict in info.verdicts)
