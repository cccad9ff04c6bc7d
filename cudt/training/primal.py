"""The primal step: the optimiser of the weights and the slacks, and the learning rate of each
update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from cudt.config.schema import Training
from cudt.models.base import LayeredModel
from cudt.utils.compat import survive_torchvision_mismatch
from cudt.utils.errors import UserError


class Primal:
    """Steps the weights of a model, and the slacks if constraints have them, against their
    gradients.
    """

    def __init__(
        self, model: LayeredModel, slack: Iterable[Tensor], settings: Training, per_epoch: int
    ) -> None:
        """`per_epoch` is the number of updates in an epoch, on which the learning rate depends."""
        groups = _groups(model, list(slack), settings)
        kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
        fused = all(_can_fuse(weight.device) for group in groups for weight in group["params"])
        self.optimizer: torch.optim.Optimizer = kind(groups, fused=fused)
        # Checkpoints may come from a device that did not fuse.
        self.optimizer.register_load_state_dict_pre_hook(
            lambda _, state: _set(state, "fused", fused)
        )
        self._full_rates = [group["lr"] for group in groups]
        self._share = learning_rate_shares(settings, per_epoch)

    def step(self, update: int) -> None:
        """Do one step and forget the gradients; `update` counts from 0."""
        # The rate depends only on the update, so that a resume does not change it.
        for group, rate in zip(self.optimizer.param_groups, self._full_rates, strict=True):
            group["lr"] = rate * self._share(update)
        self.optimizer.step()
        self.optimizer.zero_grad()


def learning_rate_shares(settings: Training, per_epoch: int) -> Callable[[int], float]:
    """The share of the full learning rate that an update of the whole training has; updates count
    from 0.

    linear and cosine are the schedules of transformers. Their warm-up starts at a rate of 0, which
    would waste an update, so that training with warm-up leaves their first rate out.
    """
    warmup = round(settings.warmup_share * settings.epochs * per_epoch)
    if settings.schedule == "constant":
        return lambda update: min(1.0, (update + 1) / max(1, warmup))
    survive_torchvision_mismatch()
    # Imported here: it takes seconds, and a constant rate does not need it.
    from transformers import get_scheduler

    skipped = min(1, warmup)
    # transformers gives a schedule only together with an optimizer. The share of an update does not
    # depend on which.
    any_optimizer = torch.optim.SGD([torch.zeros(1)])
    total = settings.epochs * per_epoch + skipped
    scheduler = get_scheduler(
        settings.schedule, any_optimizer, num_warmup_steps=warmup, num_training_steps=total
    )
    share = scheduler.lr_lambdas[0]
    return lambda update: share(update + skipped)


def _groups(model: LayeredModel, slack: list[Tensor], settings: Training) -> list[dict[str, Any]]:
    """The parameters with their full learning rate and weight decay: the weights, the readout's if
    it has its own rate, and the slacks.
    """
    assert settings.learning_rate is not None, (
        "a validated recipe has the learning rate of its model"
    )
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    apart = [weight for weight in model.readout_weights() if weight.requires_grad]
    rate = settings.readout_learning_rate
    if rate is not None and not apart:
        raise UserError(
            "training.readout_learning_rate: the readout of this model has no weights of its own "
            "to train; remove it"
        )
    of_readout = set() if rate is None else {id(weight) for weight in apart}
    parts = [
        (
            [weight for weight in trained if id(weight) not in of_readout],
            settings.learning_rate,
            settings.weight_decay,
        ),
        ([weight for weight in trained if id(weight) in of_readout], rate, settings.weight_decay),
        (slack, settings.learning_rate, 0.0),
    ]
    return [
        {"params": params, "lr": lr, "weight_decay": decay} for params, lr, decay in parts if params
    ]


def _can_fuse(device: torch.device) -> bool:
    """Whether torch has a fused optimiser for a device, which updates all weights in one pass;
    found by a try.
    """
    weight = torch.zeros(1, device=device, requires_grad=True)
    weight.grad = torch.zeros_like(weight)
    try:
        torch.optim.Adam([weight], fused=True).step()
    except (RuntimeError, NotImplementedError):
        return False
    return True


def _set(state: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The state of an optimiser with another value of an option in all groups."""
    return {**state, "param_groups": [{**group, key: value} for group in state["param_groups"]]}
