"""Saves a vision transformer that denoises video for transformers or peft, with Python code that
restores a frame.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from cudt.models.saved_encoder import loading_lines, save_encoder, save_readout

if TYPE_CHECKING:
    from cudt.models.vit_network import ViT

_SNIPPET = """\
import torch
import torch.nn.functional as F
{peft}{import_readout}from transformers import {auto}

{load}
mean = torch.tensor({mean}).view(3, 1, 1)
deviation = torch.tensor({deviation}).view(3, 1, 1)
frame = torch.full({frame}, 128.0)  # a grey picture, 0 to 255
picture = F.interpolate(frame.expand(1, 3, -1, -1), {size}, mode="{mode}", antialias=True)
with torch.no_grad():
    output = encoder(pixel_values=({scale} * picture - mean) / deviation, output_hidden_states=True)
tokens = output.{state}[0, -{rows} * {columns} :]
{read}patches = tokens.reshape({rows}, {columns}, -1, {side}, {side})
restored = patches.permute(2, 0, 3, 1, 4).reshape(-1, *{size})
grey = ((restored * deviation + mean) / {scale}).mean(0)
answer = F.interpolate(grey.expand(1, 1, -1, -1), {frame}, mode="{mode}", antialias=True)[0, 0]
"""
#: What the code needs where the readout has weights.
_READ = """\
readout = load_file("FOLDER/readout.safetensors")
tokens = tokens @ readout["weight"].T + readout["bias"]
"""


def save(model: ViT, folder: Path) -> str:
    """Save the encoder or its adapters, and the readout if it has weights; returns code that uses
    them.
    """
    save_encoder(model.encoder, folder)
    has_weights = model.head is not None
    if model.head is not None:
        save_readout(model.head, folder)
    rows, columns = (length // model.side for length in model.processed)
    return _SNIPPET.format(
        import_readout="from safetensors.torch import load_file\n" if has_weights else "",
        read=_READ if has_weights else "",
        # A linear readout reads normed states, and the direct one states without the norm.
        state="last_hidden_state" if has_weights else "hidden_states[-1]",
        frame=model.frame,
        size=model.processed,
        mean=_shown(model.mean),
        deviation=_shown(model.deviation),
        scale=model.scale,
        mode=model.mode,
        rows=rows,
        columns=columns,
        side=model.side,
        **loading_lines(model.encoder, without_pooler=False),
    )


def _shown(numbers: Tensor) -> list[float]:
    """The shortest decimals that are the same in fp32."""
    return [float(str(number)) for number in numbers.flatten().cpu().numpy()]
