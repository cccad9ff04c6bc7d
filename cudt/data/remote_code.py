"""Python code in the folder of a pretrained model: how cudt finds it, and what it says about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cudt.utils.errors import UserError
from cudt.utils.shown import shown

#: The files that can name code, in the order in which they are searched.
_FILES = ("config.json", "tokenizer_config.json", "preprocessor_config.json", "processor_config.json")
_HOW = "read the code, and if you trust it, set model.trust_remote_code: true in the recipe"


def is_refusal(error: BaseException) -> bool:
    """Whether transformers needs the folder's own code and was not allowed to run it."""
    return isinstance(error, ValueError) and "trust_remote_code" in str(error)


def refusal(name: str, source: str) -> str:
    """One line that says which code would run, and how to allow it."""
    files = ", ".join(dict.fromkeys(_code_files(Path(source)))) or "Python code of its own"
    return f"model '{name}' needs {files} to run, from {source}, which cudt does not run by itself; {_HOW}"


def warning(name: str, folder: Path | None) -> str:
    """What is printed whenever a recipe lets such code run."""
    source = folder or f"the hub ({name})"
    return f"model.trust_remote_code: true: Python code from {source} can run and do anything that you can do here"


def refuse_kernels(name: str, config: Path) -> None:
    """Refuse a configuration file that asks for compiled code from the hub as its attention."""
    for key, value in _settings(_parsed(config)):
        named = _texts(value) if key in ("attn_implementation", "_attn_implementation") else ()
        for kernel in (text for text in named if "/" in text):
            raise UserError(
                f"model '{name}': {config} sets {key} to {shown(kernel)}, code that transformers would download and "
                f"run; remove the key, or {_HOW}"
            )


def _texts(value: Any) -> Iterator[str]:
    """Every text of a value: parts of a model can have an attention each."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _settings(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key and value, those of inner sections included."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield key, inner
        yield from _settings(inner)


def _code_files(folder: Path) -> Iterator[str]:
    """The files of the classes in `auto_map`: `modeling_x.py` for `modeling_x.Model`, with a foreign repository."""
    for file in _FILES:
        listed = _parsed(folder / file).get("auto_map")
        for _, classes in _settings({"": listed} if not isinstance(listed, dict) else listed):
            for path in classes if isinstance(classes, list) else [classes]:
                if isinstance(path, str):
                    yield path.rpartition(".")[0].replace("--", "/").replace(".", "/") + ".py"


def _parsed(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        # Whatever is wrong with the file, transformers says it.
        return {}
    return values if isinstance(values, dict) else {}


def runs_in(model: Any) -> bool:
    """Whether a model's class comes from its folder: transformers imports such code as `transformers_modules`."""
    return type(model).__module__.startswith("transformers_modules")
