"""Pretrained models by name, from a local folder, an installed package, the hub's cache, or the
hub, in that order.

Without a network, the hub's libraries retry for minutes. We first check whether the hub answers; if
it does not, one error says how to get the model.

The Python code that a model's folder may contain is never run. A model with `model.revision` comes
from the hub or its cache: a folder has no versions.
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

from cudt.config.models import Attention, PretrainedName
from cudt.data.sources import reading
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
    """Whether the hub answers within two seconds; checked once per process, through the configured
    proxy.
    """
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    answers: list[bool] = []

    def ask() -> None:
        try:
            answers.append(
                get_session().head(constants.ENDPOINT, timeout=_PATIENCE).status_code < 500
            )
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

        return AutoTokenizer.from_pretrained(source, **options)

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


def load_causal_lm(
    name: str, data_root: Path | None, dtype: torch.dtype, attention: Attention = "auto"
) -> Any:
    """A pretrained causal language model with its head; refuses incomplete weights."""
    return _load_model("AutoModelForCausalLM", name, data_root, dtype, attention)


def _load_model(
    auto_class: str, name: str, data_root: Path | None, dtype: torch.dtype, attention: Attention
) -> Any:
    def load(source: str, **options: Any) -> Any:
        import transformers
        from transformers.utils import logging

        # With it, transformers would load random weights in all processes but one; models are tried
        # out in all of them.
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
        # Unused heads are expected, and its progress bar would break ours.
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        # Flash attention needs an accelerator; models/flash.py switches to it there.
        if attention not in ("auto", "flash_attention_2"):
            options["attn_implementation"] = attention
        loader = getattr(transformers, auto_class)
        # Other shapes are reported with the name of the weight, by `_check_weights`.
        options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        return loader.from_pretrained(source, dtype=dtype, **options)

    model, loading = _load(load, name, data_root)
    _check_weights(name, model, loading)
    return model


def _check_weights(name: str, model: Any, loading: dict[str, Any]) -> None:
    """Refuse weights that are missing, or of another shape than the configuration says."""
    missing = [key for key in loading["missing_keys"] if "pooler" not in key]
    if missing:
        raise UserError(
            f"model '{name}': {len(missing)} weights of {type(model).__name__} are missing, such "
            f"as {missing[0]}; "
            "use a model with complete weights of this kind"
        )
    for key, stored, configured in sorted(loading["mismatched_keys"]):
        raise UserError(
            f"model '{name}': weight '{key}' has the shape {tuple(stored)}, and config.json "
            "describes "
            f"{tuple(configured)}; use the configuration and the weights of one model"
        )


def _load(load: Callable[..., Any], name: str, data_root: Path | None) -> Any:
    """Load from the first source that has the model."""
    from huggingface_hub import try_to_load_from_cache

    survive_torchvision_mismatch()
    name = PretrainedName.of(name)
    folder = _folder_without_versions(name, data_root)
    # Never left out: transformers would ask on standard input whether to run the code.
    load = functools.partial(load, trust_remote_code=False)
    with reading(
        f"model '{name}'",
        f"cannot be loaded from {folder or 'the hub'}",
        "check its name and its files",
    ):
        if folder is not None:
            # Absolute, because adapters store it as the path of their base model.
            return load(str(folder.absolute()), local_files_only=True)
        _check_id(name)
        if name.revision is not None:
            load = functools.partial(load, revision=name.revision)
        if isinstance(try_to_load_from_cache(name, "config.json", revision=name.revision), str):
            # The cache may be incomplete: downloading a tokenizer stores the configuration, but no
            # weights.
            with contextlib.suppress(OSError):
                return load(name, local_files_only=True)
        if not is_reachable():
            raise _unavailable(name, data_root)
        return load(name)


def check(name: str, data_root: Path | None) -> None:
    """Refuse a model that is neither local nor downloadable, without loading it; run before slow
    reading of data.
    """
    from huggingface_hub import try_to_load_from_cache

    name = PretrainedName.of(name)
    if _folder_without_versions(name, data_root) is not None:
        return
    _check_id(name)
    cached = try_to_load_from_cache(name, "config.json", revision=name.revision)
    if not isinstance(cached, str) and not is_reachable():
        raise _unavailable(name, data_root)


def commit_of(name: str, data_root: Path | None) -> str | None:
    """The commit on the hub of a model that was loaded; None for a model in a folder."""
    from huggingface_hub import try_to_load_from_cache

    name = PretrainedName.of(name)
    if local_folder(name, data_root) is not None:
        return None
    # The cache has a folder for each commit, and knows which one a branch or a tag was when it was
    # last downloaded.
    cached = try_to_load_from_cache(name, "config.json", revision=name.revision)
    return Path(cached).parent.name if isinstance(cached, str) else None


def _folder_without_versions(name: PretrainedName, data_root: Path | None) -> Path | None:
    """The folder of a model on this machine, refused if the recipe asks for a version; None if
    there is none.
    """
    folder = local_folder(name, data_root)
    if folder is not None and name.revision is not None:
        raise UserError(
            f"model.revision = '{name.revision}': model '{name}' is read from the folder "
            f"{folder}, which has no "
            "versions; remove model.revision, or move the folder away to read that version from "
            "the hub or its cache"
        )
    return folder


def _unavailable(name: PretrainedName, data_root: Path | None) -> UserError:
    if name.revision is not None:
        return UserError(
            f"model '{name}', revision '{name.revision}', is not completely in the hub's cache, "
            "and the hub cannot be "
            f"reached; with network access, run `hf download {name} --revision {name.revision}`"
        )
    local = (data_root or DEFAULT_ROOT) / "models" / name
    return UserError(
        f"model '{name}' is neither in {local} nor completely in the hub's cache, and the hub "
        "cannot be reached; "
        f"with network access, run `hf download {name} --local-dir {shlex.quote(str(local))}`"
    )


def local_folder(name: str, data_root: Path | None) -> Path | None:
    """The folder of a model on this machine: a path, below the data root, or in an installed
    package; None if none.
    """
    if name.startswith(_PACKAGE):
        return _package_folder(name.removeprefix(_PACKAGE))
    for folder in (Path(name).expanduser(), (data_root or DEFAULT_ROOT) / "models" / name):
        if folder.is_dir():
            return _checked_folder(folder)
    return None


def _checked_folder(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise UserError(
            f"model folder '{folder}' has no config.json; expected a model saved by transformers"
        )
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
    if not _is_id(name):
        raise UserError(f"model '{name}': neither a folder nor a name on the hub (owner/name)")


def _is_id(name: str) -> bool:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True
