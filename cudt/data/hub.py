"""Pretrained models by name: from a folder, an installed package (`package:weights/model`), the
hub's cache or the hub, in that order.

Without a network, the hub's libraries retry for minutes. So we first ask once whether the hub
answers; if it does not, they read their caches only. The Python code that a model's folder may
contain is never run.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cudt.config.models import Attention, PretrainedName
from cudt.utils.device import survive_torchvision_mismatch
from cudt.utils.errors import UserError
from cudt.utils.text import brief

#: The data root without `--data-root`.
DEFAULT_ROOT = Path("data")
_PACKAGE = "package:"


@dataclass(frozen=True)
class Status:
    """What is on this machine of a published dataset."""

    name: str
    folder: Path
    parts: dict[str, str]
    """What each split has, like `3 files`."""
    problem: str
    """What is missing and how to get it; empty if the dataset is complete."""
    is_elsewhere: bool = False
    """Whether the hub or its cache has what is missing."""


@contextmanager
def reading(source: Path | str, advice: str) -> Iterator[None]:
    """Turn any error of the block into one line that names its source: libraries raise many kinds
    for damaged input.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        why = error.__cause__ or error
        said = str(getattr(why, "strerror", None) or why) or type(why).__name__
        reason = brief(" ".join(said.split()), 200)
        raise UserError(f"{source}: cannot be read ({reason}); {advice}") from error


@functools.cache
def is_reachable() -> bool:
    """Whether the hub answers within two seconds; asked once per process."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        return get_session().head(constants.ENDPOINT, timeout=2.0).status_code < 500
    except Exception:  # whatever the error is, the hub did not answer
        constants.HF_HUB_OFFLINE = True
        return False


def load_tokenizer(name: str, data_root: Path | None) -> Any:
    """The tokenizer of a pretrained model."""
    return _load("AutoTokenizer", name, data_root)


def load_image_processor(name: str, data_root: Path | None) -> Any:
    """The image preprocessing of a pretrained model."""
    return _load("AutoImageProcessor", name, data_root)


def load_encoder(name: str, data_root: Path | None, attention: Attention = "auto") -> Any:
    """A pretrained model without a head, in fp32; refuses incomplete weights."""
    return _load_model("AutoModel", name, data_root, torch.float32, attention)


def load_causal_lm(
    name: str, data_root: Path | None, dtype: torch.dtype, attention: Attention = "auto"
) -> Any:
    """A pretrained causal language model with its head; refuses incomplete weights."""
    return _load_model("AutoModelForCausalLM", name, data_root, dtype, attention)


def check(name: str, data_root: Path | None) -> None:
    """Refuse a model that is neither local nor downloadable, without loading it; run before slow
    reading of data.
    """
    if local_folder(name, data_root) is None and not _cached_config(name) and not is_reachable():
        raise UserError(f"model '{name}' is not on this machine; {_how_to_get(name, data_root)}")


def check_vocabulary(tokenizer: Any, n_embeddings: int, name: str) -> None:
    """Refuse a tokenizer that cannot belong to a model with this number of embeddings.

    A model may have spare embeddings (their number is often rounded up), but not as many as tokens.
    """
    n_tokens = tokenizer.vocab_size
    if n_tokens > n_embeddings or 2 * len(tokenizer) < n_embeddings:
        raise UserError(
            f"model '{name}': its tokenizer has {n_tokens} tokens, and the model {n_embeddings} "
            "embeddings; use a tokenizer and a model that belong together"
        )


def commit_of(name: str, data_root: Path | None) -> str | None:
    """The commit on the hub of a model that was loaded; None for a model in a folder."""
    if local_folder(name, data_root) is not None:
        return None
    # The cache has a folder for each commit, and knows which one a branch or a tag was when it was
    # last downloaded.
    config = _cached_config(name)
    return config.parent.name if config else None


def local_folder(name: str, data_root: Path | None) -> Path | None:
    """The folder of a model on this machine: in an installed package, a path, or below the data
    root; None if there is none.

    A recipe's `model.revision` is refused then: a folder has no versions.
    """
    folders = [Path(name).expanduser(), (data_root or DEFAULT_ROOT) / "models" / name]
    if name.startswith(_PACKAGE):
        package, *inside = name.removeprefix(_PACKAGE).split("/")
        found = importlib.util.find_spec(package) if package.isidentifier() else None
        if found is None or not found.submodule_search_locations:
            raise UserError(
                f"model '{name}': no Python package '{package}' is installed; "
                "`cudt recipes` says what each recipe needs"
            )
        folders = [Path(found.submodule_search_locations[0], *inside)]
    folder = next((one for one in folders if one.is_dir()), None)
    revision = PretrainedName.of(name).revision
    if folder is not None and revision is not None:
        raise UserError(
            f"model.revision = '{revision}': model '{name}' is read from the folder {folder}, "
            "which has no versions; remove model.revision, or move the folder away"
        )
    return folder


def _load(auto_class: str, name: str, data_root: Path | None, **options: Any) -> Any:
    survive_torchvision_mismatch()
    import transformers

    folder = local_folder(name, data_root)
    load = getattr(transformers, auto_class).from_pretrained
    # Never left out: transformers would ask on standard input whether to run the code.
    options |= {"trust_remote_code": False}
    if folder is not None:
        with reading(f"model '{name}' in {folder}", "check the files of this folder"):
            # Absolute, because adapters store it as the path of their base model.
            return load(str(folder.absolute()), local_files_only=True, **options)
    with reading(f"model '{name}'", f"check its name, or {_how_to_get(name, data_root)}"):
        revision = PretrainedName.of(name).revision
        return load(str(name), revision=revision, local_files_only=not is_reachable(), **options)


def _load_model(
    auto_class: str, name: str, data_root: Path | None, dtype: torch.dtype, attention: Attention
) -> Any:
    """The model, with every weight that its configuration describes."""
    survive_torchvision_mismatch()
    from transformers.utils import logging

    # With it, transformers would load random weights in all processes but one.
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    # Unused heads are expected, and its progress bar would break ours.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # Flash attention needs an accelerator, which the model is not on yet.
    chosen = None if attention in ("auto", "flash_attention_2") else attention
    model, loading = _load(
        auto_class,
        name,
        data_root,
        attn_implementation=chosen,
        dtype=dtype,
        output_loading_info=True,
        # Other shapes are reported below, with the name of the weight.
        ignore_mismatched_sizes=True,
    )
    problems = [f"{key} is missing" for key in loading["missing_keys"] if "pooler" not in key]
    problems += [
        f"{key} has the shape {tuple(stored)}, and config.json describes {tuple(configured)}"
        for key, stored, configured in loading["mismatched_keys"]
    ]
    if problems:
        raise UserError(
            f"model '{name}': {len(problems)} weights of {type(model).__name__} do not fit: "
            f"{min(problems)}; use the configuration and complete weights of one model"
        )
    return model


def _cached_config(name: str) -> Path | None:
    """A model's config.json in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    with reading(f"model '{name}'", "name a folder, or a model on the hub (owner/name)"):
        found = try_to_load_from_cache(
            name, "config.json", revision=PretrainedName.of(name).revision
        )
    return Path(found) if isinstance(found, str) else None


def _how_to_get(name: str, data_root: Path | None) -> str:
    revision = PretrainedName.of(name).revision
    folder = shlex.quote(str((data_root or DEFAULT_ROOT) / "models" / name))
    where = f"--revision {revision}" if revision else f"--local-dir {folder}"
    return f"with network access, run `hf download {name} {where}`"
