"""From a recipe's name or file to a validated recipe, and from a recipe to a run's identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError, create_model

import cudt
from cudt.config import mistakes, registry, strict_yaml
from cudt.config.mistakes import NO_VALUE, Mistake
from cudt.config.schema import NamedSection, Readout, Recipe
from cudt.utils.errors import UserError, did_you_mean

#: Says nothing about what is trained, so it is not part of a run's identity.
NOT_IDENTITY = {"reproduces", "published", "needs", "expect", "evaluation"}


@dataclass(frozen=True)
class NamedRecipe:
    """A recipe and the name its runs are filed under."""

    name: str
    settings: Recipe

    def resolved(self) -> dict[str, Any]:
        """Every setting, defaults included, as plain values."""
        return {"name": self.name, **self.settings.model_dump(mode="json")}

    def identity(self, *, without_seed: bool = False) -> str:
        """Eight hex digits over every setting that shapes training: the same recipe is the same run."""
        left_out = NOT_IDENTITY | ({"seed"} if without_seed else set())
        shaping = {key: value for key, value in self.resolved().items() if key not in left_out}
        # Runs of versions that did not know this section keep their names.
        if shaping["readout"] == Readout().model_dump():
            del shaping["readout"]
        return hashlib.sha256(json.dumps(shaping, sort_keys=True).encode()).hexdigest()[:8]

    def text(self) -> str:
        return strict_yaml.dump(self.resolved())


def folder() -> Path:
    """Where the recipes that come with cudt are: inside an installed package, or at the top of a checkout."""
    package = Path(cudt.__file__).resolve().parent
    return next((path for path in (package / "recipes", package.parent / "recipes") if path.is_dir()), package)


def names() -> list[str]:
    return sorted(path.stem for path in folder().glob("*.yaml"))


def locate(name_or_file: str) -> Path:
    """The file of a recipe that comes with cudt, or the file itself."""
    return find(name_or_file, folder(), "recipe")


def find(name_or_file: str, within: Path, what: str, others: str = "`cudt recipes` lists what there is") -> Path:
    """A YAML file by its name in a folder, or the file itself; `others` says which names there are."""
    if name_or_file.endswith((".yaml", ".yml")) or "/" in name_or_file:
        path = Path(name_or_file)
        if not path.is_file():
            raise UserError(f"{what} file '{name_or_file}' does not exist")
        return path
    known = sorted(path.stem for path in within.glob("*.yaml"))
    if name_or_file not in known:
        hint = did_you_mean(name_or_file, known) or f"; {others}"
        raise UserError(f"no {what} is called '{name_or_file}'{hint}")
    return within / f"{name_or_file}.yaml"


def read(path: Path) -> dict[str, Any]:
    """The settings in a file, not yet validated."""
    try:
        return strict_yaml.parse_mapping(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"recipe file '{path}' cannot be read: {error}") from None


def load(name_or_file: str, overrides: Iterable[str] = (), **settings: Any) -> NamedRecipe:
    """A validated recipe. `overrides` are `a.b=value` texts; `settings` replace top-level keys unless None."""
    path = locate(name_or_file)
    name, values = read_named(path)
    for override in overrides:
        _apply_override(values, override)
    values.update({key: value for key, value in settings.items() if value is not None})
    return NamedRecipe(name, validate(values, path.name))


def read_named(path: Path) -> tuple[str, dict[str, Any]]:
    """A recipe's name and its settings, not yet validated; it is called as its file is, unless it says otherwise.

    The recipes that runs and sweeps keep say so: trained again, they are the same run.
    """
    values = read(path)
    return checked_name(values.pop("name", path.stem), str(path)), values


def checked_name(name: Any, source: str) -> str:
    """The name of a recipe, which has to be a folder's name too."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name:
        raise UserError(f"{source}: name = {name!r}: a recipe's name is a word, and names a folder")
    return name


def load_resolved(path: Path) -> NamedRecipe:
    """The recipe that a run folder keeps."""
    return _named(read(path), str(path))


def parse_resolved(text: str) -> NamedRecipe:
    """The recipe whose text this is."""
    return _named(strict_yaml.parse_mapping(text, "recipe"), "recipe")


def _named(values: dict[str, Any], source: str) -> NamedRecipe:
    name = values.pop("name", None)
    if not isinstance(name, str):
        raise UserError(f"{source}: not a run's recipe, it has no name")
    return NamedRecipe(name, validate(values, source))


def _apply_override(values: dict[str, Any], override: str) -> None:
    path, sign, text = override.partition("=")
    if not sign or not all(path.strip().split(".")):
        raise UserError(f"--set '{override}': write key=value, with dots for sections, like training.epochs=3")
    try:
        put(values, path.strip(), strict_yaml.parse(text, f"--set {path}"))
    except KeyError as error:
        raise UserError(f"--set '{override}': {error.args[0]}") from None


def put(values: dict[str, Any], path: str, value: Any) -> None:
    """Set `a.b.c`, making the sections on the way; KeyError where one of them is a value."""
    *sections, last = path.split(".")
    for key in sections:
        values = values.setdefault(key, {})
        if not isinstance(values, dict):
            raise KeyError(f"'{key}' is a value, it has no '{last}' inside")
    values[last] = value


def validate(values: dict[str, Any], source: str) -> Recipe:
    """The typed recipe; all mistakes at once: path, value, what is allowed, and the nearest right word."""
    recipe, found = check(values)
    if recipe is None:
        mistakes.refuse(source, found)
    return recipe


def check(values: dict[str, Any]) -> tuple[Recipe | None, list[Mistake]]:
    """The typed recipe, or everything that is wrong with it."""
    schema, unknown = _typed_schema(values)
    try:
        recipe = schema.model_validate(values)
    except ValidationError as error:
        return None, [*unknown, *mistakes.explain(schema, error)]
    return (None if unknown else recipe), unknown


class _AnyNamedSection(NamedSection):
    """A section whose name tells nothing: what else is in it cannot be judged."""

    model_config = ConfigDict(extra="allow")


def _typed_schema(values: dict[str, Any]) -> tuple[type[Recipe], list[Mistake]]:
    """The recipe schema with `task` and `model` typed by the files that they name, and the names without a file."""
    typed: dict[str, Any] = {}
    unknown: list[Mistake] = []
    for kind in ("task", "model"):
        section = values.get(kind)
        name = section.get("name") if isinstance(section, dict) else None
        typed[kind] = (_AnyNamedSection, ...)
        if isinstance(name, str):
            if why := registry.problem(kind, name):
                unknown.append(Mistake((kind, "name"), NO_VALUE, why))
            else:
                typed[kind] = (registry.load(kind, name).Config, ...)
    return create_model("Recipe", __base__=Recipe, **typed), unknown
