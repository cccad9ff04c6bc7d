"""Pretrained models by name, offline first: a folder, a folder inside an installed package, the cache, then the hub.

Libraries of the hub retry for minutes where there is no network. Here one short question tells whether the hub
answers, and if not, one line says what to do.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import shlex
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cudt.utils.compat import survive_torchvision_mismatch
from cudt.utils.errors import UserError

#: Where files are looked for, and put by hand, when no `--data-root` is given.
DEFAULT_ROOT = Path("data")
_PATIENCE = 2.0
_PACKAGE = "package:"


@functools.cache
def is_reachable() -> bool:
    """Whether the hub answers within two seconds; asked once in a process, through the proxy that is configured."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    answers: list[bool] = []

    def ask() -> None:
        try:
            answers.append(get_session().head(constants.ENDPOINT, timeout=_PATIENCE).status_code < 500)
        except Exception:  # whatever went wrong, the hub did not answer
            answers.append(False)

    # Looking up a host name cannot be given a timeout, so it must not be waited for.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return bool(answers and answers[0])


def load_tokenizer(name: str, data_root: Path | None) -> Any:
    """The tokenizer of a pretrained model."""

    def load(source: str, **options: Any) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(source, **options)

    return _load(load, name, data_root)


def load_image_processor(name: str, data_root: Path | None) -> Any:
    """What a pretrained model does to an image before it looks at it."""

    def load(source: str, **options: Any) -> Any:
        from transformers import AutoImageProcessor

        return AutoImageProcessor.from_pretrained(source, **options)

    return _load(load, name, data_root)


def load_encoder(name: str, data_root: Path | None) -> Any:
    """A pretrained model without a head, in fp32; refuses weights that do not fill it."""
    return _load_model("AutoModel", name, data_root, torch.float32)


def load_causal_lm(name: str, data_root: Path | None, dtype: torch.dtype) -> Any:
    """A pretrained causal language model with its head; refuses weights that do not fill it."""
    return _load_model("AutoModelForCausalLM", name, data_root, dtype)


def _load_model(auto_class: str, name: str, data_root: Path | None, dtype: torch.dtype) -> Any:
    def load(source: str, **options: Any) -> Any:
        import transformers
        from transformers.utils import logging

        # Its report on unused heads is no news here, and its bar cuts through ours.
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        loader = getattr(transformers, auto_class)
        return loader.from_pretrained(source, dtype=dtype, output_loading_info=True, **options)

    model, loading = _load(load, name, data_root)
    missing = [key for key in loading["missing_keys"] if "pooler" not in key]
    if missing:
        raise UserError(
            f"model '{name}': its files lack {len(missing)} weights of {type(model).__name__}, such as {missing[0]}"
        )
    return model


def _load(load: Callable[..., Any], name: str, data_root: Path | None) -> Any:
    """Load from the first source that has the model."""
    from huggingface_hub import try_to_load_from_cache

    survive_torchvision_mismatch()
    folder = _local_folder(name, data_root)
    if folder is not None:
        # Absolute, since adapters remember it as their base, wherever they are loaded from.
        return _told_plainly(name, load, str(folder.absolute()), local_files_only=True)
    _check_id(name)
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        # It need not be whole: a tokenizer that was fetched brings the configuration, but no weights.
        with contextlib.suppress(Exception):
            return load(name, local_files_only=True)
    if not is_reachable():
        raise _unavailable(name, data_root)
    return _told_plainly(name, load, name)


def check(name: str, data_root: Path | None) -> None:
    """Refuse a model that is neither here nor to be had, without loading it: before data are read, which takes long."""
    from huggingface_hub import try_to_load_from_cache

    if _local_folder(name, data_root) is not None:
        return
    _check_id(name)
    if not isinstance(try_to_load_from_cache(name, "config.json"), str) and not is_reachable():
        raise _unavailable(name, data_root)


def _unavailable(name: str, data_root: Path | None) -> UserError:
    local = (data_root or DEFAULT_ROOT) / "models" / name
    return UserError(
        f"model '{name}' is neither in {local} nor whole in the hub's cache, and the hub cannot be reached; "
        f"where it can, run `hf download {name} --local-dir {shlex.quote(str(local))}`"
    )


def _local_folder(name: str, data_root: Path | None) -> Path | None:
    if name.startswith(_PACKAGE):
        return _package_folder(name.removeprefix(_PACKAGE))
    for folder in (Path(name).expanduser(), (data_root or DEFAULT_ROOT) / "models" / name):
        if folder.is_dir():
            return _checked_folder(folder)
    return None


def _checked_folder(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise UserError(f"model folder '{folder}' has no config.json: not a model that transformers saved")
    return folder


def _package_folder(name: str) -> Path:
    """`package:weights/model`: the folder `model` inside the installed package `weights`."""
    package, _, inside = name.partition("/")
    found = importlib.util.find_spec(package) if package.isidentifier() else None
    if found is None or not found.submodule_search_locations:
        raise UserError(
            f"model '{_PACKAGE}{name}': no Python package called '{package}' is installed; "
            "`cudt recipes` says how to get what a recipe needs"
        )
    return _checked_folder(Path(found.submodule_search_locations[0]) / inside)


def _check_id(name: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        raise UserError(f"model '{name}': no such folder, and not a name of the hub either (owner/name)") from None


def _told_plainly(name: str, load: Callable[..., Any], source: str, **options: Any) -> Any:
    """Load; what the libraries tell in paragraphs becomes a line."""
    try:
        return load(source, **options)
    except Exception as error:  # the libraries raise many kinds over a folder that is not whole
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"model '{name}' cannot be loaded from {source}: {reason}") from None
