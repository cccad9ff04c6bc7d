"""Adds low-rank adapters (lora.py) to a model of transformers, with peft, and saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from cudt.config.models import Lora, PretrainedName
from cudt.utils.errors import UserError


def with_adapters(
    model: Any, lora: Lora, source: PretrainedName, task_type: str | None = None
) -> Any:
    """The model wrapped by peft: its own weights are frozen, and only its adapters are trained.

    The modules of the model stay the same objects, with their hooks; its linear layers are replaced
    by adapted ones. Linear layers that are frozen before get no adapter: nothing uses their output.
    The model was loaded from `source`; `task_type` is what peft calls a model with a head.
    """
    # Imported here: it imports all of transformers, which takes seconds and may need
    # utils/compat.py first.
    from peft import LoraConfig, get_peft_model

    unused = [
        key
        for key, part in model.named_modules()
        if isinstance(part, nn.Linear) and not part.weight.requires_grad
    ]
    config = LoraConfig(
        task_type=task_type,
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=None if lora.targets == "default" else lora.targets,
        exclude_modules=unused or None,
    )
    try:
        # The version is stored with the adapter, which loads the same version of its base model.
        adapted = get_peft_model(model, config, revision=source.revision)
    except ValueError as error:
        raise UserError(f"model '{source}', {type(model).__name__}: {error}") from None
    _refuse_embeddings(adapted)
    return adapted


def _refuse_embeddings(adapted: Any) -> None:
    """Refuse adapters of embeddings: noise is added to embeddings, and σ_x is measured on the fixed
    ones.
    """
    from peft.tuners.lora import Embedding

    for key, module in adapted.base_model.model.named_modules():
        if isinstance(module, Embedding):
            raise UserError(
                f"model.lora.targets: '{key}' is an embedding, which stays fixed; name linear "
                "layers only"
            )


def save_adapters(adapted: Any, folder: Path) -> None:
    """Save the adapters for peft, without the model that they adapt."""
    # The default "auto" would ask the hub whether the vocabulary has grown.
    adapted.save_pretrained(folder, save_embedding_layers=False)
