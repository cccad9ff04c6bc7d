"""The files of a pretrained model's folder: which one is damaged, and whether its configuration fits its weights."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cudt.data.sources import reason_of
from cudt.utils.errors import UserError

_JSON = (
    "config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "preprocessor_config.json",
    "model.safetensors.index.json",
)
#: Keys that say how many parts a model has, each of which is built.
_PARTS = re.compile(r"(num|n)_\w*(layers?|heads?|groups?|experts?|blocks?)|inner_group_num")
#: So many parts need no weights of their own, because layers can share them.
_FEW_PARTS = 128
#: Bytes that a weight takes in a pickle, at least.
_BYTES = 64
#: Numbers of a model that need not be in its files, such as positions that are computed; and how many numbers a byte
#: of its files can stand for, at four bits each and with shared weights counted twice.
_FREE, _PER_BYTE = 10_000_000, 4
_AGAIN = "download the file again"
_OF_ONE_MODEL = "use the configuration and the weights of one model"


def damage(folder: Path) -> str:
    """The first file of a folder that cannot be read, with the reason; empty if all can be."""
    return next((f"{folder / name}: {problem}; {_AGAIN}" for name, problem in _problems(folder)), "")


def _problems(folder: Path) -> Iterator[tuple[str, str]]:
    for name in _JSON:
        try:
            if (folder / name).is_file() and not isinstance(json.loads((folder / name).read_bytes()), dict):
                yield name, "expected a JSON object"
        except (OSError, ValueError, RecursionError) as error:
            yield name, f"invalid JSON ({reason_of(error)})"
    for file in sorted(folder.glob("*.safetensors")):
        try:
            _tensors(file)
        except Exception as error:  # safetensors has its own kind of error
            yield file.name, reason_of(error)


def _tensors(file: Path) -> Sequence[str]:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        return [*opened.keys()]


def check_proportions(folder: Path, auto_class: str) -> None:
    """Refuse a configuration of a much larger model than the weights are for, before it takes memory or hours."""
    path = folder / "config.json"
    files = [*folder.glob("*.safetensors")] or [*folder.glob("*.bin")]
    config = json.loads(path.read_bytes())
    n_tensors = sum(map(_n_weights, files))
    for key, value in _settings(config):
        if _PARTS.fullmatch(key) and isinstance(value, int) and value > max(_FEW_PARTS, n_tensors):
            raise UserError(f"{path}: {key} = {value}, but its files have {n_tensors} weights; {_OF_ONE_MODEL}")
    size = sum(file.stat().st_size for file in files)
    claimed = _count(folder, auto_class)
    if claimed > _FREE + _PER_BYTE * size:
        raise UserError(
            f"{path}: describes a model of {claimed:,} numbers, but its files have {size:,} bytes; {_OF_ONE_MODEL}"
        )


def _n_weights(file: Path) -> int:
    """The weights in a file, or more than it has; no pickle is loaded for it."""
    if file.suffix == ".safetensors":
        return len(_tensors(file))
    if not zipfile.is_zipfile(file):
        return file.stat().st_size // _BYTES
    with zipfile.ZipFile(file) as archive:
        return sum(Path(name).parent.name == "data" for name in archive.namelist())


def _settings(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key and value, those of inner sections included."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield key, inner
        yield from _settings(inner)


def _count(folder: Path, auto_class: str) -> int:
    """The numbers in the weights and buffers of the configured model, without memory for them."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        # Nothing is computed, so it does not matter whether the configured attention works here.
        model = getattr(transformers, auto_class).from_config(
            config, trust_remote_code=False, attn_implementation="eager"
        )
    return sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))


def check_weights(name: str, model: Any, loading: dict[str, Any]) -> None:
    """Refuse weights that are missing, of another shape than the configuration says, NaN or infinite."""
    import torch

    missing = [key for key in loading["missing_keys"] if "pooler" not in key]
    if missing:
        raise UserError(
            f"model '{name}': {len(missing)} weights of {type(model).__name__} are missing, such as {missing[0]}; "
            "use a model with complete weights of this kind"
        )
    for key, stored, configured in sorted(loading["mismatched_keys"]):
        raise UserError(
            f"model '{name}': weight '{key}' has the shape {tuple(stored)}, and config.json describes "
            f"{tuple(configured)}; {_OF_ONE_MODEL}"
        )
    for key, weight in model.named_parameters():
        if weight.numel() and weight.is_floating_point() and not torch.stack(torch.aminmax(weight)).isfinite().all():
            raise UserError(f"model '{name}': weight '{key}' has NaN or infinite values; {_AGAIN}")
