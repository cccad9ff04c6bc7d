"""From a recipe's name, file or dictionary to a validated recipe, and from a recipe to a run's
identity.

A file inherits with `base: imdb-roberta`, the name of a shipped one or a path from the file, and
says what differs. Sections are merged key by key. Everything else is replaced: numbers, texts,
null, whole lists. A `task` or `model` section with another `name` than the base's replaces that of
the base, because other tasks and models have other keys.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import create_model

import cudt
from cudt.config import errors, plugins, yaml
from cudt.config.schema import NamedSection, Recipe
from cudt.config.tasks import TextSection, VideoSection
from cudt.utils.errors import UserError
from cudt.utils.text import brief, did_you_mean, shown

#: Keys about one file alone.
_NOT_INHERITED = ("name", "reproduces", "published", "expect")
#: Keys that do not change the numbers of a training, so they are not part of a run's identity.
_NOT_IDENTITY = (
    *("reproduces", "published", "needs", "expect", "evaluation", "checkpoints", "loading"),
    *("training.log_every", "training.checkpoint_every"),
)
#: Kinds of files that come with cudt, and their folders below that of the recipes.
_FOLDERS = {"recipe": ".", "search": "sweeps", "scale": "reproduce"}
#: A name is a folder below the results. Accents and vowel signs may be characters of their own.
_NAME = re.compile(r"\w[-\w.+=() \u0080-\U0010ffff]{0,99}(?<! )")
#: Folders of cudt itself, next to those of the recipes.
_RESERVED = re.compile(r"report|sweeps|generated|trackers|(report|reproduce)-.*", re.IGNORECASE)


@dataclass(frozen=True)
class NamedRecipe:
    """A recipe and its name, which is the folder of its runs."""

    name: str
    settings: Recipe

    def resolved(self) -> dict[str, Any]:
        """Every setting, defaults included, as plain values."""
        return {"name": self.name, **self.settings.model_dump(mode="json")}

    def identity(self, *, without_seed: bool = False) -> str:
        """Eight hex digits over every setting that changes the numbers of a training: the same
        recipe is the same run.
        """
        shaping = shaping_values(self.resolved(), *(["seed"] if without_seed else []))
        return hashlib.sha256(json.dumps(shaping, sort_keys=True).encode()).hexdigest()[:8]

    def text(self) -> str:
        """The resolved recipe as YAML."""
        return yaml.dump(self.resolved())


def shaping_values(values: Mapping[str, Any], *others: str) -> dict[str, Any]:
    """The settings that change the numbers of a training by dotted key, without `others`."""
    left_out = (*_NOT_IDENTITY, *others)
    return {
        key: value
        for key, value in flat(values).items()
        if not any(key == one or key.startswith(f"{one}.") for one in left_out)
    }


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Settings by dotted key."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        inner = isinstance(value, Mapping) and value
        found |= flat(value, f"{before}{key}.") if inner else {before + key: value}
    return found


# ---------------------------------------------------------------- files


def folder() -> Path:
    """The folder of the recipes that come with cudt: inside an installed package, or at the top of
    a checkout.
    """
    package = Path(cudt.__file__).resolve().parent
    places = (package / "recipes", package.parent / "recipes")
    return next((path for path in places if path.is_dir()), package)


def names(kind: str = "recipe") -> list[str]:
    """The recipes, searches or scales that come with cudt."""
    return sorted(_files(kind))


def _files(kind: str) -> dict[str, Path]:
    within, others = folder() / _FOLDERS[kind], ("accelerate", *_FOLDERS.values())
    return {
        path.stem: path
        for path in within.rglob("*.yaml")
        if path.relative_to(within).parts[0] not in others
    }


def locate(name_or_file: str, kind: str = "recipe") -> Path:
    """The file of a recipe, search or scale that comes with cudt, or the file itself."""
    if _is_file_name(name_or_file):
        if not Path(name_or_file).is_file():
            raise UserError(f"{kind} file {shown(name_or_file)} does not exist")
        return Path(name_or_file)
    known = _files(kind)
    if name_or_file not in known:
        hint = did_you_mean(name_or_file, known) or f"; available: {', '.join(sorted(known))}"
        raise UserError(f"no {kind} is called {shown(name_or_file)}{hint}")
    return known[name_or_file]


def _is_file_name(text: str) -> bool:
    return text.endswith((".yaml", ".yml")) or "/" in text


def read(path: Path, kind: str = "recipe") -> dict[str, Any]:
    """The settings in a file and in those it inherits from, not yet validated."""
    return _inherit(yaml.read(path), path, kind, [])


def _inherit(values: dict[str, Any], path: Path, kind: str, heirs: list[Path]) -> dict[str, Any]:
    """The values of a file with those of its base, if it has one; `heirs` inherit from the file."""
    if (base := values.pop("base", None)) is None:
        return values
    heirs = [*heirs, path.resolve()]
    try:
        file = path.parent / str(base) if _is_file_name(str(base)) else locate(str(base), kind)
        if file.resolve() in heirs:
            raise UserError(f"{file} inherits from this file")
        inherited = _inherit(yaml.read(file), file, kind, heirs)
    except UserError as error:
        raise UserError(f"{path}: base: {error}") from None
    kept = {key: value for key, value in inherited.items() if key not in _NOT_INHERITED}
    return _merge(kept, values)


def _merge(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in own.items():
        before = base.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            is_same = value.get("name", before.get("name")) == before.get("name")
            value = _merge(before, value) if is_same else value
        merged[key] = value
    return merged


def checked_name(name: Any, source: str) -> str:
    """A name that can be a folder below the results; `source` is the key or option that sets it."""
    if not (isinstance(name, str) and _NAME.fullmatch(name) and name.isprintable()):
        raise UserError(
            f"{source}: must be at most 100 letters, digits, spaces and _ - . + = ( ), with a "
            f"letter, digit or _ first, got {shown(name)}"
        )
    if _RESERVED.fullmatch(name):
        raise UserError(
            f"{source}: {shown(name)} is a folder that cudt itself writes to; choose another name"
        )
    return name


# ---------------------------------------------------------------- recipes


def load(
    source: str | Path | Mapping[str, Any],
    changes: Mapping[str, Any] | Iterable[str] | None = None,
    name: str | None = None,
    **settings: Any,
) -> NamedRecipe:
    """A validated recipe from the name of a shipped one, a file, or a dictionary.

    `changes` map dotted keys to values, or are texts like `training.epochs=3`; `settings` replace
    top-level keys unless None. `name` replaces the recipe's own name, which is the folder of its
    runs.
    """
    if isinstance(source, Mapping):
        values = _inherit(copy.deepcopy(dict(source)), Path("recipe"), "recipe", [])
        where, own = "recipe", "recipe"
    else:
        path = locate(str(source))
        values, own = read(path), path.stem
        where = str(source) if isinstance(source, Path) else path.name
    if not isinstance(changes, Mapping):
        changes = dict(map(_parse_change, changes or ()))
    changed = {**changes, **{key: one for key, one in settings.items() if one is not None}}
    for key, value in changed.items():
        put(values, key, copy.deepcopy(value))
    own = values.pop("name", own)
    chosen = checked_name(own, f"{where}: name") if name is None else checked_name(name, "--name")
    return NamedRecipe(chosen, validate(values, f"{where} with your changes" if changed else where))


def put(values: dict[str, Any], path: str, value: Any) -> None:
    """Set `a.b.c`, making sections on the way."""
    *sections, last = path.split(".")
    for key in sections:
        if not isinstance(values.get(key), dict):
            values[key] = {}
        values = values[key]
    values[last] = value


def _parse_change(change: str) -> tuple[str, Any]:
    path, sign, text = change.partition("=")
    if not sign or not all(path.strip().split(".")):
        raise UserError(
            f"--set {shown(change)}: write key=value, with dots for sections, like "
            "training.epochs=3"
        )
    return path.strip(), yaml.parse(text, f"--set {brief(path)}")


def validate(values: dict[str, Any], source: str) -> Recipe:
    """The typed recipe; all errors are reported together, after `source`."""
    sections = {"task": NamedSection, "model": NamedSection}
    for kind in sections:
        section = values.get(kind)
        if isinstance(section, dict) and isinstance(name := section.get("name"), str):
            try:
                sections[kind] = plugins.section(kind, name)
            except UserError as error:
                raise UserError(f"{source}: {kind}.name: {error}") from error
    schema = _schema(sections["task"], sections["model"])
    return _with_learning_rate(errors.validated(schema, values, source))


@functools.cache
def _schema(task: type[NamedSection], model: type[NamedSection]) -> type[Recipe]:
    """The recipe with typed `task` and `model`; made once, because a sweep checks thousands."""
    typed: dict[str, Any] = {"task": (task, ...), "model": (model, ...)}
    return create_model("Recipe", __base__=Recipe, **typed)


def _with_learning_rate(recipe: Recipe) -> Recipe:
    """The recipe with its model's learning rate and warm-up, if it does not set the learning rate.

    So every later reader, and the run's identity, has the numbers.
    """
    training, model = recipe.training, recipe.model
    if training.learning_rate is not None:
        return recipe
    changes = {"learning_rate": model.learning_rate}
    if "warmup_share" not in training.model_fields_set:
        changes["warmup_share"] = model.warmup_share
    return recipe.model_copy(update={"training": training.model_copy(update=changes)})


# ---------------------------------------------------------------- test data of another task


@dataclass(frozen=True)
class OtherData:
    """`--on`: the test data of the task or the recipe `name`, whose section is `task`."""

    name: str
    task: NamedSection


def other_data(own: NamedSection, name: str, source: str = "--on") -> OtherData:
    """The test data of a task or a recipe, for a run with the section `own`. Keys that tasks of its
    family share, such as the size of frames, come from `own`: the examples must have its shape.
    """
    values: dict[str, Any] = {"name": name}
    if name not in plugins.names("task"):
        recipe = load(name)
        name, values = recipe.name, recipe.settings.task.model_dump(mode="json")
    config = plugins.section("task", values["name"])
    for family in (VideoSection, TextSection):
        if isinstance(own, family) and issubclass(config, family):
            # The version of a dataset on the hub belongs to that dataset.
            shared = family.model_fields.keys() - {"name", "revision"}
            values |= own.model_dump(mode="json", include=shared)
            task = errors.validated(config, values, f"{source} {name}")
            if task == own:
                raise UserError(f"{source} {name}: these are the run's own data; name other data")
            return OtherData(name, task)
    raise UserError(
        f"{source} {name}: task {own.name} of the run cannot be tested on data of task "
        f"{values['name']}; name a task with the same kind of examples (videos, or texts with "
        "classes)"
    )
