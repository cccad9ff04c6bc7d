"""The equations of UT token by token, on lists of numbers."""

from __future__ import annotations

import math
from typing import Any


def times(matrix: Any, vector: Any) -> list[float]:
    return [sum(m * v for m, v in zip(row, vector, strict=True)) for row in matrix]


def attended(y: list[list[float]], x: list[list[float]]) -> list[list[float]]:
    """softmax(Y Yᵀ) X."""
    made = []
    for query in y:
        logits = [sum(a * b for a, b in zip(query, key, strict=True)) for key in y]
        weights = [math.exp(logit - max(logits)) for logit in logits]
        columns = list(zip(*x, strict=True))
        made.append([value / sum(weights) for value in times(columns, weights)])
    return made


def unrolled_layers(weights: list[Any], step_size: float, x: list[list[float]]) -> list[Any]:
    """X_1 … X_L from the input and (W₁, W₂) of each layer."""
    states = []
    for w1, w2 in weights:
        n = range(len(w2))
        w_s = [
            [(1 - step_size) * (i == j) - step_size / 2 * (w2[i][j] + w2[j][i]) for j in n]
            for i in n
        ]
        z = attended([times(w1, token) for token in x], x)
        x = [[max(0.0, value) for value in times(w_s, token)] for token in z]
        states.append(x)
    return states


def dust_layers(
    dictionaries: list[Any],
    sparsity: float,
    correlation: float,
    unit: float,
    norms: list[float],
    x: Any,
) -> list[Any]:
    """D h_t of each layer from patches x_t, by U = I − DᵀD/c and V = Dᵀ/c."""
    h = [[0.0] * len(dictionaries[0][0]) for _ in x]
    layers = []
    for d, c in zip(dictionaries, norms, strict=True):
        atoms = list(zip(*d, strict=True))
        n = range(len(atoms))
        gram = [[sum(a * b for a, b in zip(p, q, strict=True)) for q in atoms] for p in atoms]
        u = [[(i == j) - gram[i][j] / c for j in n] for i in n]
        z = attended([[value / unit for value in times(d, code)] for code in h], h)
        h = []
        for patch, mixed in zip(x, z, strict=True):
            shown = times(atoms, patch)
            code = [
                value + one / c
                for value, one in zip(
                    times(u, [correlation * m for m in mixed]), shown, strict=True
                )
            ]
            h.append([math.copysign(max(0.0, abs(v) - sparsity / c), v) for v in code])
        layers.append([times(d, code) for code in h])
    return layers
