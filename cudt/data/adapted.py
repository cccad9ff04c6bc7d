"""Adapters of peft: the model that one was trained on, and loading the two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cudt.config.pretrained import PretrainedName
from cudt.utils.errors import UserError
from cudt.utils.reading import ContentError, json_object


def base_of(config: Path, *, trusts_code: bool = False) -> PretrainedName:
    """The model that an adapter was trained on, with its version on the hub, from its adapter_config.json."""
    try:
        values = json_object(config.read_bytes())
    except (OSError, ContentError) as error:
        raise UserError(f"{config}: {error}; save the adapter again") from None
    base, revision = values.get("base_model_name_or_path"), values.get("revision")
    if not isinstance(base, str) or not base:
        raise UserError(
            f"{config}: base_model_name_or_path does not name the model that the adapter was trained on; set it"
        )
    return PretrainedName(base, trusts_code=trusts_code, revision=revision if isinstance(revision, str) else None)


def with_adapter(model: Any, folder: str) -> Any:
    """A model with the adapter in a folder, which can be trained."""
    # Imported here: it imports all of transformers, which takes seconds and may need utils/compat.py first.
    from peft import PeftModel

    adapted = PeftModel.from_pretrained(model, folder, is_trainable=True, local_files_only=True)
    if adapted.active_peft_config.is_prompt_learning:
        raise UserError(f"{folder}: adapters that add tokens to the input cannot be read layer by layer; use LoRA")
    return adapted
