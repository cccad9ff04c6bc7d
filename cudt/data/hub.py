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
from pathlib import Path
from typing import Any

import torch

from cudt.config.models import Attention
from cudt.utils.device import survive_torchvision_mismatch
from cudt.utils.errors import UserError
from cudt.utils.text import brief

#: The data root without `--data-root`.
DEFAULT_ROOT = Path(os.environ.get("CUDT_DATA_ROOT") or "data")
_PACKAGE = "package:"


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
        reason = brief(" ".join(str(why).split()) or type(why).__name__, 200)
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


def load_tokenizer(name: str | None, data_root: Path | None) -> Any:
    """The tokenizer of a pretrained model."""
    if name is None:
        raise UserError(
            "task.name: this task has texts, but the model has no tokenizer; set "
            "model.pretrained, or model.embeddings_from of model unrolled"
        )
    return load("AutoTokenizer", name, data_root)


def load(auto_class: str, name: str, data_root: Path | None, **options: Any) -> Any:
    """What a class of transformers reads of a pretrained model, such as `AutoImageProcessor`."""
    survive_torchvision_mismatch()
    import transformers

    folder = local_folder(name, data_root)
    advice = f"check the files in {folder}"
    if folder is None:
        advice = f"check its name, or {_how_to_get(name, data_root)}"
    with reading(f"model '{name}'", advice):
        return getattr(transformers, auto_class).from_pretrained(
            # Absolute, because adapters store it as the path of their base model.
            str(folder.absolute() if folder else name),
            revision=_revision(name),
            local_files_only=folder is not None or not is_reachable(),
            # Never left out: transformers would ask on standard input whether to run the code.
            trust_remote_code=False,
            **options,
        )


def load_model(
    auto_class: str,
    name: str,
    data_root: Path | None,
    attention: Attention = "auto",
    dtype: torch.dtype = torch.float32,
) -> Any:
    """A pretrained model, `AutoModel` or one with a head; refuses incomplete weights."""
    survive_torchvision_mismatch()
    from transformers.utils import logging

    # With it, transformers would load random weights in all processes but one.
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    # Unused heads are expected, and its progress bar would break ours.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # Flash attention needs an accelerator, which the model is not on yet.
    chosen = None if attention in ("auto", "flash_attention_2") else attention
    options = {"attn_implementation": chosen, "dtype": dtype, "output_loading_info": True}
    model, loading = load(auto_class, name, data_root, **options)
    missing = sorted(key for key in loading["missing_keys"] if "pooler" not in key)
    if missing:
        raise UserError(
            f"model '{name}': {len(missing)} weights of {type(model).__name__} are missing, such "
            f"as {missing[0]}; use complete weights of one model"
        )
    return model


def check(name: str, data_root: Path | None) -> None:
    """Refuse a model that is neither local nor downloadable, before data are read."""
    if local_folder(name, data_root) is None and not _cached_config(name) and not is_reachable():
        raise UserError(f"model '{name}' is not on this machine; {_how_to_get(name, data_root)}")


def local_folder(name: str, data_root: Path | None) -> Path | None:
    """The folder of a model: in an installed package, a path, or below the data root; None if there
    is none, or if the recipe names a version on the hub (`model.revision`).
    """
    if _revision(name) is not None:
        return None
    folders = [Path(name).expanduser(), (data_root or DEFAULT_ROOT) / "models" / name]
    if name.startswith(_PACKAGE):
        package, *inside = name.removeprefix(_PACKAGE).split("/")
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise UserError(
                f"model '{name}': no Python package '{package}' is installed; "
                "`cudt recipes` says what each recipe needs"
            )
        folders = [Path(found.submodule_search_locations[0], *inside)]
    return next((folder for folder in folders if folder.is_dir()), None)


def _revision(name: str) -> str | None:
    return getattr(name, "revision", None)  # a `PretrainedName` has one


def _cached_config(name: str) -> Path | None:
    """A model's config.json in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    with reading(f"model '{name}'", "name a folder, or a model on the hub (owner/name)"):
        found = try_to_load_from_cache(name, "config.json", revision=_revision(name))
    return Path(found) if isinstance(found, str) else None


def _how_to_get(name: str, data_root: Path | None) -> str:
    folder = shlex.quote(str((data_root or DEFAULT_ROOT) / "models" / name))
    revision = _revision(name)
    where = f"--revision {revision}" if revision else f"--local-dir {folder}"
    return f"with network access, run `hf download {name} {where}`"
