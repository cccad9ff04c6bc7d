"""The constraints as functions of the layer losses f_1 … f_L, in three forms, for layers l = 1 … L:

    linear   g_l = f_l − (1−α_l)·f_{l−1} ≤ 0
    log      g_l = log f_l − log f_{l−1} − log(1−α_l) ≤ 0
    ladder   g_l = f_l − (1−α_1)·…·(1−α_l)·f_0 ≤ 0

f_0 = `reference` is a fixed number, and so are the bounds of the ladder. `linear` and `log` have
the same feasible set, but with resilience other minimisers: a slack relaxes the linear form by an
amount of loss, the log form by a factor. A point that meets `linear` meets the ladder; the converse
does not hold.

Two gradients of g. `full` differentiates all of it: λ_l then also pays for *raising* f_{l−1}.
`proxy` takes what the constraint allows as a number, so λ_l only pays for lowering f_l (Cotter et
al., 2019). The values of g are the same.

`allowed_losses` and `effective_weights` also take numpy arrays: importing torch takes longer than
reading a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from cudt.utils.transfer import sent

if TYPE_CHECKING:
    from torch import Tensor

Form = Literal["linear", "log", "ladder"]
Gradient = Literal["full", "proxy"]
_Array = TypeVar("_Array", "Tensor", "np.ndarray[Any, Any]")


def rate_for_target(target_loss: float, reference: float, n_layers: int) -> float:
    """The constant α that leads from f_0 to `target_loss` in L layers: 1 − α = (target /
    f_0)^(1/L).
    """
    if not 0 < target_loss < reference:
        raise ValueError(
            f"target_loss must be between 0 and the reference f_0 = {reference:g}, got "
            f"{target_loss:g}"
        )
    return 1 - (target_loss / reference) ** (1 / n_layers)


def rates_per_layer(alpha: float | Sequence[float], n_layers: int) -> list[float]:
    """α_1 … α_L from one rate for all layers or from one rate per layer."""
    if n_layers < 1:
        raise ValueError(f"n_layers must be at least 1, got {n_layers}")
    rates = (
        [float(alpha)] * n_layers
        if isinstance(alpha, int | float)
        else [float(rate) for rate in alpha]
    )
    if len(rates) != n_layers:
        raise ValueError(
            f"expected one rate, or {n_layers} rates for a model of {n_layers} layers, got "
            f"{len(rates)}"
        )
    if any(not 0 <= rate < 1 for rate in rates):
        raise ValueError(f"rates must be at least 0 and below 1, got {rates}")
    return rates


def in_form(losses: Tensor, form: Form) -> Tensor:
    """f, or log f in the log form; a loss that underflowed to zero counts as the smallest positive
    number.
    """
    return (
        losses.clamp_min(_library(losses).finfo(losses.dtype).tiny).log()
        if form == "log"
        else losses
    )


def allowed_losses(
    layer_losses: _Array, reference: float, rates: Sequence[float], form: Form
) -> _Array:
    """The largest losses that meet the constraints without relaxation, in the unit of the loss.

    They are (1−α_l)·f_{l−1}, or (1−α_1)·…·(1−α_l)·f_0 on the ladder. `layer_losses` has the layers
    in its first dimension, and may have others, such as examples: then f_{l−1} is that of the same
    example.
    """
    retained = _retained(layer_losses, rates)
    if form == "ladder":
        return _library(layer_losses).broadcast_to(
            reference * retained.cumprod(0), layer_losses.shape
        )
    return retained * _previous(layer_losses, reference)


def descent_violations(
    layer_losses: Tensor,
    reference: float,
    rates: Sequence[float],
    form: Form = "linear",
    gradient: Gradient = "full",
) -> Tensor:
    """g_1 … g_L from f_1 … f_L (equations in the module's docstring); layer l meets its constraint
    if g_l ≤ 0.
    """
    bounding = layer_losses.detach() if gradient == "proxy" else layer_losses
    if form == "log":
        before = in_form(_previous(bounding, reference), form)
        return in_form(layer_losses, form) - before - _retained(layer_losses, rates).log()
    return layer_losses - allowed_losses(bounding, reference, rates, form)


def loss_asked_of_last(reference: float, rates: Sequence[float]) -> float:
    """(1−α_1)·…·(1−α_L)·f_0: the largest loss of the last layer that all constraints together
    allow, in every form.
    """
    return reference * math.prod(1 - rate for rate in rates)


def effective_weights(
    multipliers: _Array, rates: Sequence[float], form: Form, gradient: Gradient
) -> _Array:
    """w_1 … w_L: the weight of each layer's loss in the primal step, ∂(f_L + Σ λ·g)/∂f_l; a
    negative one raises it.

    w_l = λ_l − (1−α_{l+1})·λ_{l+1} and w_L = 1 + λ_L. In the log form they are per unit of log f,
    without (1−α); on the ladder and with the proxy gradient w_l = λ_l.
    """
    earlier = multipliers[:-1]
    if form != "ladder" and gradient == "full":
        passed_on = (
            multipliers[1:]
            if form == "log"
            else _retained(multipliers[1:], rates[1:]) * multipliers[1:]
        )
        earlier = earlier - passed_on
    return _library(multipliers).concatenate([earlier, multipliers[-1:] + 1])


def _retained(layer_losses: _Array, rates: Sequence[float]) -> _Array:
    """1−α_1 … 1−α_L, in the first dimension of the losses."""
    on_host = 1 - _library(layer_losses).asarray(rates, dtype=layer_losses.dtype)
    retained: Any = (
        on_host if isinstance(layer_losses, np.ndarray) else sent(on_host, layer_losses.device)
    )
    return retained.reshape(-1, *(1 for _ in layer_losses.shape[1:]))


def _previous(layer_losses: _Array, reference: float) -> _Array:
    """f_0 … f_{L−1}."""
    library = _library(layer_losses)
    return library.concatenate([library.full_like(layer_losses[:1], reference), layer_losses[:-1]])


def _library(array: Any) -> Any:
    """numpy or torch, which share the functions used here."""
    if isinstance(array, np.ndarray):
        return np
    import torch

    return torch
