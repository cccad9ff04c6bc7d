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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError, create_model

import cudt
from cudt.config import errors, plugins, yaml
from cudt.config.errors import Mistake
from cudt.config.schema import NamedSection, Recipe
from cudt.utils.errors import UserError
from cudt.utils.text import brief, did_you_mean, shown

#: Keys about one file alone.
_NOT_INHERITED = ("name", "reproduces", "published", "expect")
#: Keys that do not change the numbers of a training, so they are not part of a run's identity.
_NOT_IDENTITY = (
    *("reproduces", "published", "needs", "expect", "evaluation", "checkpoints", "loading"),
    *("training.log_every", "training.checkpoint_every"),
)
#: Keys that the name of a recipe usually stands for.
_NAMED_AFTER = ("task.name", "model.name", "model.pretrained", "model.embeddings_from")
#: Folders next to the recipes that hold other kinds of files.
_NOT_RECIPES = ("accelerate", "sweeps", "reproduce")
#: Folders of cudt itself, next to those of the recipes.
_RESERVED = re.compile(r"report|sweeps|generated|trackers|(report|reproduce)-.*", re.IGNORECASE)
#: From the name of a file that comes with cudt to its path.
Locate = Callable[[str], Path]


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
    return next(
        (path for path in (package / "recipes", package.parent / "recipes") if path.is_dir()),
        package,
    )


def names() -> list[str]:
    """The recipes that come with cudt."""
    return sorted(files_below(folder()))


def files_below(within: Path) -> dict[str, Path]:
    """Every recipe, search or scale in a folder and below it, by name."""
    return {
        path.stem: path
        for path in sorted(within.rglob("*.yaml"))
        if path.relative_to(within).parts[0] not in _NOT_RECIPES
    }


def locate(name_or_file: str) -> Path:
    """The file of a recipe that comes with cudt, or the file itself."""
    return find(name_or_file, folder(), "recipe")


def find(
    name_or_file: str, within: Path, what: str, others: str = "`cudt recipes` lists all"
) -> Path:
    """A YAML file by its name anywhere below a folder, or the file itself; `others` says where the
    names are listed.
    """
    if _is_file_name(name_or_file):
        if not Path(name_or_file).is_file():
            raise UserError(f"{what} file {shown(name_or_file)} does not exist")
        return Path(name_or_file)
    known = files_below(within)
    if name_or_file not in known:
        hint = did_you_mean(name_or_file, known) or f"; {others}"
        raise UserError(f"no {what} is called {shown(name_or_file)}{hint}")
    return known[name_or_file]


def _is_file_name(text: str) -> bool:
    return text.endswith((".yaml", ".yml")) or "/" in text


def read(path: Path, locate_base: Locate = locate) -> dict[str, Any]:
    """The settings in a file and in those it inherits from, not yet validated."""
    return _read(path, locate_base, ())


def _read(path: Path, locate_base: Locate, chain: tuple[Path, ...]) -> dict[str, Any]:
    values = yaml.parse_mapping(yaml.read_text(path), str(path))
    return _inherit(values, path, locate_base, (*chain, path.resolve()))


def _inherit(
    values: dict[str, Any], path: Path, locate_base: Locate, chain: tuple[Path, ...]
) -> dict[str, Any]:
    """The values of a file with those of its base, if it has one."""
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise UserError(f"{path}: base: must be the name of a file, got {shown(base)}")
    try:
        file = path.parent / base if _is_file_name(base) else locate_base(base)
        if file.resolve() in chain:
            circle = " → ".join(one.name for one in (*chain, file))
            raise UserError(f"files inherit from each other in a circle: {circle}")
        inherited = _read(file, locate_base, chain)
    except UserError as error:
        raise UserError(f"{path}: base: {error}") from None
    return _merge(
        {key: value for key, value in inherited.items() if key not in _NOT_INHERITED}, values
    )


def _merge(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in own.items():
        before = base.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            is_same = value.get("name", before.get("name")) == before.get("name")
            value = _merge(before, value) if is_same else value
        merged[key] = value
    return merged


# ---------------------------------------------------------------- names


def name_problem(name: Any) -> str:
    """Why a name cannot be a folder below the results; empty if it can."""
    # As in Python's identifiers, letters may have accents and vowel signs of their own.
    letters = re.sub(r"[-.+=() ]", "", str(name))
    if (
        not (isinstance(name, str) and re.match(r"\w", name) and f"_{letters}".isidentifier())
        or name.endswith(" ")
        or len(name) > 100
    ):
        return (
            "must be at most 100 letters, digits, spaces and _ - . + = ( ), with a letter, digit "
            f"or _ first, got {shown(name)}"
        )
    if _RESERVED.fullmatch(name):
        return f"{shown(name)} is a folder that cudt itself writes to; choose another name"
    return ""


def checked_name(name: Any, source: str) -> str:
    """A name that can be a folder below the results; `source` is the key or option that sets it."""
    if problem := name_problem(name):
        raise UserError(f"{source}: {problem}")
    return str(name)


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
        values = _inherit(copy.deepcopy(dict(source)), Path("recipe"), locate, ())
        where, own = "recipe", "recipe"
    else:
        path = locate(str(source))
        values = read(path)
        where, own = path.name, path.stem
    if not isinstance(changes, Mapping):
        changes = dict(map(_parse_change, changes or ()))
    changed = {**changes, **{key: one for key, one in settings.items() if one is not None}}
    for key, value in changed.items():
        put(values, key, copy.deepcopy(value))
    own = values.pop("name", own)
    chosen = checked_name(own, f"{where}: name") if name is None else checked_name(name, "--name")
    recipe, found = check(values)
    if recipe is None:
        # An option must not be blamed on the file.
        is_changed = any(_is_within(one.path, key.split(".")) for one in found for key in changed)
        errors.refuse(f"{where} with your changes" if is_changed else where, found)
    return NamedRecipe(chosen, recipe)


def _is_within(path: Sequence[Any], key: Sequence[str]) -> bool:
    """Whether one of two keys is the other or a section that contains it."""
    return all(one == other for one, other in zip(path, key, strict=False))


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
    path = path.strip()
    if not sign or not all(path.split(".")):
        raise UserError(
            f"--set {shown(change)}: write key=value, with dots for sections, like "
            "training.epochs=3"
        )
    return path, yaml.parse(text, f"--set {brief(path)}")


def outgrown_name(name_or_file: str, loaded: NamedRecipe) -> str:
    """The key and value that give a loaded recipe another task or model than its file; empty if
    there is none.
    """
    before, after = flat(read(locate(name_or_file))), flat(loaded.resolved())
    for key in _NAMED_AFTER:
        # The same pretrained model in another folder is the same model.
        was, value = (str(one.get(key)).rstrip("/").rpartition("/")[2] for one in (before, after))
        if key in before and was != value:
            return f"{key} = {after.get(key)}"
    return ""


def read_named(path: Path) -> tuple[str, dict[str, Any]]:
    """A recipe's name, which is the file's unless the file says otherwise, and its settings, not
    yet validated.
    """
    values = read(path)
    return checked_name(values.pop("name", path.stem), f"{path}: name"), values


def load_resolved(path: Path) -> NamedRecipe:
    """The recipe in a run folder."""
    return parse_resolved(yaml.read_text(path), str(path))


def parse_resolved(text: str, source: str = "recipe") -> NamedRecipe:
    """A resolved recipe from its text."""
    values = yaml.parse_mapping(text, source)
    if not isinstance(name := values.pop("name", None), str):
        raise UserError(f"{source}: name: missing; this is not the recipe of a run")
    return NamedRecipe(name, validate(values, source))


# ---------------------------------------------------------------- validation


def validate(values: dict[str, Any], source: str) -> Recipe:
    """The typed recipe; all errors are reported together, after `source`."""
    recipe, found = check(values)
    if recipe is None:
        errors.refuse(source, found)
    return recipe


def check(values: dict[str, Any]) -> tuple[Recipe | None, list[Mistake]]:
    """The typed recipe, or everything that is wrong with it."""
    sections: dict[str, type[NamedSection]] = {"task": _AnySection, "model": _AnySection}
    found: list[Mistake] = []
    for kind in sections:
        section = values.get(kind)
        if isinstance(section, dict) and isinstance(name := section.get("name"), str):
            try:
                sections[kind] = plugins.section(kind, name)
            except UserError as error:
                found.append(Mistake((kind, "name"), str(error)))
    schema = _schema(sections["task"], sections["model"])
    try:
        recipe = schema.model_validate(values)
    except ValidationError as error:
        return None, [*found, *errors.explain(schema, error)]
    return (None if found else _with_schedule(recipe)), found


class _AnySection(NamedSection):
    """A section whose name is unknown: its other keys cannot be checked."""

    model_config = ConfigDict(extra="allow")


@functools.cache
def _schema(task: type[NamedSection], model: type[NamedSection]) -> type[Recipe]:
    """The recipe with typed `task` and `model`; made once, because a sweep checks thousands."""
    typed: dict[str, Any] = {"task": (task, ...), "model": (model, ...)}
    return create_model("Recipe", __base__=Recipe, **typed)


def _with_schedule(recipe: Recipe) -> Recipe:
    """The recipe with its model's learning rate and warm-up, if it does not set the learning rate.

    So every later reader, and the run's identity, has the numbers.
    """
    training = recipe.training
    if training.learning_rate is not None:
        return recipe
    schedule = recipe.model.schedule
    changes = {"learning_rate": schedule.learning_rate}
    if "warmup_share" not in training.model_fields_set:
        changes["warmup_share"] = schedule.warmup_share
    return recipe.model_copy(update={"training": training.model_copy(update=changes)})
