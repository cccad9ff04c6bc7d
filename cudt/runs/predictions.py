"""What a run predicts for new texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Predictions:
    """The predicted class of each text, in the order of the texts, and the layer that predicted
    it.
    """

    labels: list[int | str]
    """The most likely class, as the training data call it."""
    probabilities: np.ndarray[Any, Any]
    """The probability of each class, (texts, classes)."""
    classes: list[int | str]
    """The class of each column of `probabilities`."""
    layers: np.ndarray[Any, Any]
    """The layer, from 1, after which each text left the model."""
    n_layers: int
    """The number of layers of the model, which is the layer of every text without early exit."""
