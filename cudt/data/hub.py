"""Pretrained models by name, from a local folder, an installed package, the hub's cache, or the hub, in that order.

Without a network, the hub's libraries retry for minutes. We first check whether the hub answers; if it does not, one
error says how to get the model.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shlex
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cudt.config.schema import Attention
from cudt.utils.compat import survive_torchvision_mismatch
from cudt.utils.errors import UserError

if TYPE_CHECKING:
    import torch

#: The data root without `--data-root`.
DEFAULT_ROOT = Path("data")
_PATIENCE = 2.0
_PACKAGE = "package:"


@functools.cache
def is_reachable() -> bool:
    """Whether the hub answers within two seconds; checked once per process, through the configured proxy."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    answers: list[bool] = []

    def ask() -> None:
        try:
            answers.append(get_session().head(constants.ENDPOINT, timeout=_PATIENCE).status_code < 500)
        except Exception:  # whatever the error is, the hub did not answer
            answers.append(False)

    # In a thread, because looking up a host name has no timeout.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return bool(answers and answers[0])


def load_tokenizer(name: str, data_root: Path | None) -> Any:
    """The tokenizer of a pretrained model."""

    def load(source: str, **options: Any) -> Any:
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(source, **options)
        except ValueError as error:
            if "backend tokenizer" not in str(error):
                raise
            raise ValueError(
                "the tokenizer's vocabulary (tokenizer.json, vocab.txt or tokenizer.model) is missing, or needs the "
                "package sentencepiece or tiktoken"
            ) from None

    return _load(load, name, data_root)


def load_image_processor(name: str, data_root: Path | None) -> Any:
    """The image preprocessing of a pretrained model."""

    def load(source: str, **options: Any) -> Any:
        from transformers import AutoImageProcessor

        return AutoImageProcessor.from_pretrained(source, **options)

    return _load(load, name, data_root)


def load_encoder(name: str, data_root: Path | None, attention: Attention = "auto") -> Any:
    """A pretrained model without a head, in fp32; refuses incomplete weights."""
    import torch

    return _load_model("AutoModel", name, data_root, torch.float32, attention)


def load_causal_lm(name: str, data_root: Path | None, dtype: torch.dtype, attention: Attention = "auto") -> Any:
    """A pretrained causal language model with its head; refuses incomplete weights."""
    return _load_model("AutoModelForCausalLM", name, data_root, dtype, attention)


def _load_model(auto_class: str, name: str, data_root: Path | None, dtype: torch.dtype, attention: Attention) -> Any:
    def load(source: str, **options: Any) -> Any:
        import transformers
        from transformers.utils import logging

        # With it, transformers would load random weights in all processes but one; models are tried out in all of them.
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
        # Unused heads are expected, and its progress bar would break ours.
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        # Flash attention needs an accelerator; models/flash.py switches to it there.
        if attention not in ("auto", "flash_attention_2"):
            options["attn_implementation"] = attention
        loader = getattr(transformers, auto_class)
        return loader.from_pretrained(source, dtype=dtype, output_loading_info=True, **options)

    model, loading = _load(load, name, data_root)
    missing = [key for key in loading["missing_keys"] if "pooler" not in key]
    if missing:
        raise UserError(
            f"model '{name}': {len(missing)} weights of {type(model).__name__} are missing, such as {missing[0]}; "
            "use a model with complete weights of this kind"
        )
    return model


def _load(load: Callable[..., Any], name: str, data_root: Path | None) -> Any:
    """Load from the first source that has the model."""
    from huggingface_hub import try_to_load_from_cache

    survive_torchvision_mismatch()
    folder = _local_folder(name, data_root)
    if folder is not None:
        # Absolute, because adapters store it as the path of their base model.
        return _load_from(name, load, str(folder.absolute()), local_files_only=True)
    _check_id(name)
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        # The cache may be incomplete: downloading a tokenizer stores the configuration, but no weights.
        with contextlib.suppress(Exception):
            return load(name, local_files_only=True)
    if not is_reachable():
        raise _unavailable(name, data_root)
    return _load_from(name, load, name)


def check(name: str, data_root: Path | None) -> None:
    """Refuse a model that is neither local nor downloadable, without loading it; run before slow reading of data."""
    from huggingface_hub import try_to_load_from_cache

    if _local_folder(name, data_root) is not None:
        return
    _check_id(name)
    if not isinstance(try_to_load_from_cache(name, "config.json"), str) and not is_reachable():
        raise _unavailable(name, data_root)


def _unavailable(name: str, data_root: Path | None) -> UserError:
    local = (data_root or DEFAULT_ROOT) / "models" / name
    return UserError(
        f"model '{name}' is neither in {local} nor completely in the hub's cache, and the hub cannot be reached; "
        f"with network access, run `hf download {name} --local-dir {shlex.quote(str(local))}`"
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
        raise UserError(f"model folder '{folder}' has no config.json; expected a model saved by transformers")
    return folder


def _package_folder(name: str) -> Path:
    """`package:weights/model`: the folder `model` inside the installed package `weights`."""
    package, _, inside = name.partition("/")
    found = importlib.util.find_spec(package) if package.isidentifier() else None
    if found is None or not found.submodule_search_locations:
        raise UserError(
            f"model '{_PACKAGE}{name}': no Python package '{package}' is installed; "
            "`cudt recipes` says what each recipe needs"
        )
    return _checked_folder(Path(found.submodule_search_locations[0]) / inside)


def _check_id(name: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        raise UserError(f"model '{name}': neither a folder nor a name on the hub (owner/name)") from None


def _load_from(name: str, load: Callable[..., Any], source: str, **options: Any) -> Any:
    """Load from one source; the long errors of the libraries become one line."""
    try:
        return load(source, **options)
    except Exception as error:  # the libraries raise many kinds of errors for an incomplete folder
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"model '{name}' cannot be loaded from {source}: {reason}") from None
