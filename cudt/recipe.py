"""From a recipe's name or file to a validated recipe, and from a recipe to a run's identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.fields import FieldInfo

from cudt import registry, strict_yaml
from cudt.errors import UserError, did_you_mean
from cudt.schema import UNION_TAGS, NamedSection, Readout, Recipe

#: Says nothing about what is trained, so it is not part of a run's identity.
_NOT_IDENTITY = {"reproduces", "needs", "expect", "evaluation"}


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
        left_out = _NOT_IDENTITY | ({"seed"} if without_seed else set())
        shaping = {key: value for key, value in self.resolved().items() if key not in left_out}
        # Runs of versions that did not know this section keep their names.
        if shaping["readout"] == Readout().model_dump():
            del shaping["readout"]
        return hashlib.sha256(json.dumps(shaping, sort_keys=True).encode()).hexdigest()[:8]

    def text(self) -> str:
        return strict_yaml.dump(self.resolved())


def folder() -> Path:
    """Where the recipes that come with cudt are: inside an installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parent
    return next((path for path in (package / "recipes", package.parent / "recipes") if path.is_dir()), package)


def names() -> list[str]:
    return sorted(path.stem for path in folder().glob("*.yaml"))


def locate(name_or_file: str) -> Path:
    """The file of a recipe that comes with cudt, or the file itself."""
    if name_or_file.endswith((".yaml", ".yml")) or "/" in name_or_file:
        path = Path(name_or_file)
        if not path.is_file():
            raise UserError(f"recipe file '{name_or_file}' does not exist")
        return path
    if name_or_file not in names():
        hint = did_you_mean(name_or_file, names()) or "; `cudt recipes` lists what there is"
        raise UserError(f"no recipe is called '{name_or_file}'{hint}")
    return folder() / f"{name_or_file}.yaml"


def read(path: Path) -> dict[str, Any]:
    """The settings in a file, not yet validated."""
    try:
        return strict_yaml.parse_mapping(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"recipe file '{path}' cannot be read: {error}") from None


def load(name_or_file: str, overrides: Iterable[str] = (), **settings: Any) -> NamedRecipe:
    """A validated recipe. `overrides` are `a.b=value` texts; `settings` replace top-level keys unless None."""
    path = locate(name_or_file)
    values = read(path)
    for override in overrides:
        _apply_override(values, override)
    values.update({key: value for key, value in settings.items() if value is not None})
    return NamedRecipe(path.stem, validate(values, f"recipe {path.stem}"))


def load_resolved(path: Path) -> NamedRecipe:
    """The recipe that a run folder keeps."""
    values = read(path)
    name = values.pop("name", None)
    if not isinstance(name, str):
        raise UserError(f"{path}: not a run's recipe, it has no name")
    return NamedRecipe(name, validate(values, str(path)))


def _apply_override(values: dict[str, Any], override: str) -> None:
    path, sign, text = override.partition("=")
    keys = path.strip().split(".")
    if not sign or not all(keys):
        raise UserError(f"--set '{override}': write key=value, with dots for sections, like training.epochs=3")
    section = values
    for key in keys[:-1]:
        inner = section.setdefault(key, {})
        if not isinstance(inner, dict):
            raise UserError(f"--set '{override}': '{key}' is a value, it has no '{keys[-1]}' inside")
        section = inner
    section[keys[-1]] = strict_yaml.parse(text, f"--set {path}")


def validate(values: dict[str, Any], source: str) -> Recipe:
    """All mistakes at once: path, value, what is allowed, and the nearest right word."""
    schema, mistakes = _typed_schema(values)
    try:
        recipe = schema.model_validate(values)
    except ValidationError as error:
        mistakes += [_explain(schema, dict(mistake)) for mistake in error.errors(include_url=False)]
    if not mistakes:
        return recipe
    if len(mistakes) == 1:
        raise UserError(f"{source}: {mistakes[0]}")
    raise UserError(f"{source}: {len(mistakes)} mistakes" + "".join(f"\n  {mistake}" for mistake in mistakes))


class _AnyNamedSection(NamedSection):
    """A section whose name tells nothing: what else is in it cannot be judged."""

    model_config = ConfigDict(extra="allow")


def _typed_schema(values: dict[str, Any]) -> tuple[type[Recipe], list[str]]:
    """The recipe schema with `task` and `model` typed by the files that they name, and the names without a file."""
    typed: dict[str, Any] = {}
    unknown: list[str] = []
    for kind in ("task", "model"):
        section = values.get(kind)
        name = section.get("name") if isinstance(section, dict) else None
        typed[kind] = (_AnyNamedSection, ...)
        if isinstance(name, str):
            try:
                typed[kind] = (registry.load(kind, name).Config, ...)
            except UserError as error:
                unknown.append(str(error))
    return create_model("Recipe", __base__=Recipe, **typed), unknown


def _explain(schema: type[BaseModel], mistake: dict[str, Any]) -> str:
    location = [part for part in mistake["loc"] if part not in UNION_TAGS]
    path = ".".join(str(part) for part in location) or "the recipe"
    if mistake["type"] == "missing":
        return f"{path}: missing"
    section, field = _find_field(schema, mistake["loc"])
    value = mistake["input"]
    if mistake["type"] == "extra_forbidden":
        return f"{path} = {value!r}: unknown key{did_you_mean(str(location[-1]), section.model_fields)}"
    context = mistake.get("ctx", {})
    if mistake["type"] == "value_error":
        return f"{path}: {context['error']}"
    message = mistake["msg"][0].lower() + mistake["msg"][1:]
    if mistake["type"] == "literal_error":
        message = f"must be {context['expected']}{_nearest(value, context['expected'])}"
    bounds = _allowed_range(field)
    return f"{path} = {value!r}: {message}" + (f" (allowed: {bounds})" if bounds else "")


def _nearest(value: Any, expected: str) -> str:
    return did_you_mean(str(value), [word.strip("' ") for part in expected.split(",") for word in part.split(" or ")])


def _find_field(schema: type[BaseModel], location: Sequence[Any]) -> tuple[type[BaseModel], FieldInfo | None]:
    """The section class that holds the last key of a path, and that key's field where there is one."""
    section: type[BaseModel] = schema
    field: FieldInfo | None = None
    for position, key in enumerate(location):
        if key in UNION_TAGS:
            section = UNION_TAGS[key] or section
            continue
        field = section.model_fields.get(key) if isinstance(key, str) else field
        if field is None:
            break
        # An optional section is one of two types.
        inner = [kind for kind in (field.annotation, *get_args(field.annotation)) if _is_section(kind)]
        if position < len(location) - 1 and inner:
            section = inner[0]
    return section, field


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def _allowed_range(field: FieldInfo | None) -> str:
    """`≥ 0, < 1` from the bounds that a field, or a part of its type, declares."""
    if field is None:
        return ""
    found: dict[str, None] = {}
    pending: list[Any] = [*field.metadata, field.annotation]
    while pending:
        item = pending.pop(0)
        for name, sign in _BOUNDS.items():
            if isinstance(bound := getattr(item, name, None), int | float):
                found[f"{sign} {bound}"] = None
        pending += getattr(item, "metadata", []) if not isinstance(item, type) else []
        pending += getattr(item, "__metadata__", ()) + getattr(item, "__args__", ())
    return ", ".join(found)
