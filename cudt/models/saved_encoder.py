"""Saving an encoder of transformers and the readout that cudt trained with it, and Python code that
loads both.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import nn

from cudt.models.adapters import save_adapters
from cudt.utils.files import write_atomically

#: Python code that loads an encoder, and an encoder with adapters.
_WHOLE = 'encoder = AutoModel.from_pretrained("FOLDER"{options})'
_ADAPTED = """\
config = AutoConfig.from_pretrained("FOLDER")
base = AutoModel.from_pretrained({base!r}, config=config{options})
encoder = PeftModel.from_pretrained(base, "FOLDER")"""


def save_encoder(encoder: Any, folder: Path) -> None:
    """Save an encoder for transformers, or its adapters for peft, next to its configuration."""
    if not is_adapted(encoder):
        encoder.save_pretrained(folder)
        return
    save_adapters(encoder, folder)
    # It has what cudt adds to it, such as the names of the classes.
    encoder.config.save_pretrained(folder)


def save_readout(head: nn.Module, folder: Path) -> None:
    """Save the weights of a readout in readout.safetensors."""
    weights = {name: value.detach().cpu().contiguous() for name, value in head.state_dict().items()}
    write_atomically(folder / "readout.safetensors", lambda file: file.write(save(weights)))


def loading_lines(encoder: Any, *, without_pooler: bool) -> dict[str, str]:
    """Parts of a snippet: `peft` is a line that imports it or nothing, `auto` are classes to
    import, `load` loads.
    """
    model = encoder.get_base_model() if is_adapted(encoder) else encoder
    # Without this, transformers would make a random pooler and report its weights as missing.
    takes_option = "add_pooling_layer" in inspect.signature(type(model).__init__).parameters
    options = ", add_pooling_layer=False" if without_pooler and takes_option else ""
    if not is_adapted(encoder):
        return {"peft": "", "auto": "AutoModel", "load": _WHOLE.format(options=options)}
    adapters = encoder.peft_config["default"]
    options += f", revision={adapters.revision!r}" if adapters.revision else ""
    load = _ADAPTED.format(base=adapters.base_model_name_or_path, options=options)
    return {"peft": "from peft import PeftModel\n", "auto": "AutoConfig, AutoModel", "load": load}


def is_adapted(encoder: Any) -> bool:
    """Whether an encoder is wrapped by peft."""
    return hasattr(encoder, "peft_config")
