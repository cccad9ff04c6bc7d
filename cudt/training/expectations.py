"""What the constraints ask for, in words, before the first update, and whether β leaves them any
weight.
"""

from __future__ import annotations

from cudt.method.constraints import loss_asked_of_last
from cudt.method.descent import LayerwiseDescent

#: With weights below this, the layers before the last are trained as good as not at all; the last
#: layer has at least 1.
LEAST_WEIGHT = 0.05


def asked(descent: LayerwiseDescent) -> str:
    """What α asks of the last layer, the loss that all constraints together allow."""
    reference, n_layers = descent.reference, descent.n_layers
    reached = loss_asked_of_last(reference, descent.rates)
    rates = sorted(set(descent.rates))
    alpha, product = f"α = {rates[0]:.4g}", "(1 − α)^L"
    if len(rates) > 1:
        alpha, product = f"α from {rates[0]:.4g} to {rates[-1]:.4g}", "(1 − α_1)·…·(1 − α_L)"
    return f"{alpha} asks layer {n_layers} for a loss ≤ {product}·f_0 = {reached:.4g}, f_0 = {reference:.4g}"


def doubt(descent: LayerwiseDescent) -> str | None:
    """A warning if α and β leave the layers before the last almost no weight; None if not."""
    weights = descent.settled_weights()
    # In the log form equal multipliers cancel for every α and β, so the estimate says nothing about
    # them.
    if weights is None or descent.form == "log" or descent.n_layers == 1:
        return None
    if (most := weights[:-1].max().item()) >= LEAST_WEIGHT:
        return None
    otherwise = (
        ", or set descent.gradient: proxy"
        if descent.form == "linear" and descent.gradient == "full"
        else ""
    )
    return (
        f"descent.beta = {descent.beta:g} and alpha leave the layers before the last a weight of "
        f"about {most:.2g} in "
        f"the primal step (the last has at least 1): raise beta or alpha{otherwise}"
    )
