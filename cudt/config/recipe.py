"""From a recipe's name or file to a validated recipe, and from a recipe to a run's identity."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError, create_model

import cudt
from cudt.config import inheritance, mistakes, plugins, strict_yaml
from cudt.config.inheritance import Locate
from cudt.config.mistakes import NO_VALUE, Mistake
from cudt.config.names import checked_name, name_of_file
from cudt.config.schema import NamedSection, Recipe
from cudt.utils.errors import UserError, did_you_mean
from cudt.utils.files import is_file
from cudt.utils.shown import brief, shown, shown_path

#: Keys that do not change training, so they are not part of a run's identity.
NOT_IDENTITY = {
    "reproduces",
    "published",
    "needs",
    "expect",
    "evaluation",
    "checkpoints",
    "loading",
}
#: Keys that the name of a recipe usually stands for.
_NAMED_AFTER = (
    ("task", "name"),
    ("model", "name"),
    ("model", "pretrained"),
    ("model", "embeddings_from"),
)
#: Folders next to the recipes that hold other kinds of files.
_NOT_RECIPES = ("accelerate", "sweeps", "reproduce")


@dataclass(frozen=True)
class NamedRecipe:
    """A recipe and its name, which is the folder of its runs."""

    name: str
    settings: Recipe

    def resolved(self) -> dict[str, Any]:
        """Every setting, defaults included, as plain values."""
        return {"name": self.name, **self.settings.model_dump(mode="json")}

    def identity(self, *, without_seed: bool = False) -> str:
        """Eight hex digits over every setting that changes training: the same recipe is the same
        run.
        """
        values = {"name": self.name, **self.settings.model_dump(mode="json")}
        shaping = shaping_values(values, *(["seed"] if without_seed else []))
        return hashlib.sha256(json.dumps(shaping, sort_keys=True).encode()).hexdigest()[:8]

    def text(self) -> str:
        """The resolved recipe as YAML."""
        return strict_yaml.dump(self.resolved())


def shaping_values(values: Mapping[str, Any], *others: str) -> dict[str, Any]:
    """The settings that change training, without `others`."""
    return {key: value for key, value in values.items() if key not in {*NOT_IDENTITY, *others}}


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
    return sorted(_recipe_files())


def locate(name_or_file: str) -> Path:
    """The file of a recipe that comes with cudt, or the file itself."""
    return _find(name_or_file, _recipe_files(), "recipe", "`cudt recipes` lists all recipes")


def find(
    name_or_file: str, within: Path, what: str, others: str = "`cudt recipes` lists all"
) -> Path:
    """A YAML file by its name anywhere below a folder, or the file itself; `others` says where the
    names are listed.
    """
    return _find(name_or_file, files_below(within), what, others)


def files_below(within: Path) -> dict[str, Path]:
    """Every YAML file in a folder and below it, by name; two files of one name are an error."""
    found: dict[str, Path] = {}
    for path in sorted(within.rglob("*.yaml")):
        if path.stem in found:
            raise UserError(
                f"two files are called {path.name}: {found[path.stem]} and {path}; rename one"
            )
        found[path.stem] = path
    return found


def _recipe_files() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for inner in sorted(
        path for path in folder().iterdir() if path.is_dir() and path.name not in _NOT_RECIPES
    ):
        for name, path in files_below(inner).items():
            if name in found:
                raise UserError(
                    f"two recipes are called '{name}': {found[name]} and {path}; rename one"
                )
            found[name] = path
    return found


def _find(name_or_file: str, known: dict[str, Path], what: str, others: str) -> Path:
    if name_or_file.endswith((".yaml", ".yml")) or "/" in name_or_file:
        path = Path(name_or_file)
        if not is_file(path):
            raise UserError(f"{what} file {shown_path(name_or_file)} does not exist")
        return path
    if name_or_file not in known:
        hint = did_you_mean(name_or_file, known) or f"; {others}"
        raise UserError(f"no {what} is called {shown(name_or_file)}{hint}")
    return known[name_or_file]


def read(path: Path, locate_base: Locate = locate) -> dict[str, Any]:
    """The settings in a file and in those it inherits from, not yet validated."""
    return inheritance.read(path, locate_base)


# ---------------------------------------------------------------- recipes


def load(
    name_or_file: str, overrides: Iterable[str] = (), name: str | None = None, **settings: Any
) -> NamedRecipe:
    """A validated recipe. `overrides` are `a.b=value` texts; `settings` replace top-level keys
    unless None.

    `name` replaces the recipe's own name, which is the folder of its runs.
    """
    path = locate(name_or_file)
    values = inheritance.read(path, locate)
    if name is None:
        name = name_of_file(path, values)
    else:
        values.pop("name", None)
        name = checked_name(name, "--name")
    for override in overrides:
        _apply_override(values, override)
    values.update({key: value for key, value in settings.items() if value is not None})
    return NamedRecipe(name, validate(values, path.name))


def outgrown_name(name_or_file: str, loaded: NamedRecipe) -> str:
    """The key and value that give a loaded recipe another task or model than its file; empty if
    there is none.

    The same pretrained model in another folder is the same model.
    """
    before, after = (
        dict(inheritance.leaves(values, ()))
        for values in (read(locate(name_or_file)), loaded.resolved())
    )
    for key in _NAMED_AFTER:
        was, value = before.get(key), after.get(key)
        if was is not None and _last_part(was) != _last_part(value):
            return f"{'.'.join(key)} = {value}"
    return ""


def _last_part(value: Any) -> str:
    return str(value).rstrip("/").rpartition("/")[2]


def read_named(path: Path) -> tuple[str, dict[str, Any]]:
    """A recipe's name and its settings, not yet validated.

    The name is the file's, unless the file says otherwise: the recipes in run and sweep folders do,
    so that training them again is the same run.
    """
    values = read(path)
    return name_of_file(path, values), values


def load_resolved(path: Path) -> NamedRecipe:
    """The recipe in a run folder."""
    return _named(read_resolved(path), str(path))


def read_resolved(path: Path) -> dict[str, Any]:
    """The settings in a run folder, not validated."""
    return strict_yaml.parse_mapping(strict_yaml.read_text(path), str(path))


def parse_resolved(text: str) -> NamedRecipe:
    """A resolved recipe from its text."""
    return _named(strict_yaml.parse_mapping(text, "recipe"), "recipe")


def _named(values: dict[str, Any], source: str) -> NamedRecipe:
    name = values.pop("name", None)
    if not isinstance(name, str):
        raise UserError(f"{source}: name: missing; this is not the recipe of a run")
    recipe, found = _typed(values)
    if recipe is None:
        mistakes.refuse(source, found)
    return NamedRecipe(name, recipe)


def _apply_override(values: dict[str, Any], override: str) -> None:
    path, sign, text = override.partition("=")
    path = path.strip()
    if not sign or not all(path.split(".")):
        raise UserError(
            f"--set {shown(override)}: write key=value, with dots for sections, like "
            "training.epochs=3"
        )
    try:
        inheritance.put(values, path, strict_yaml.parse(text, f"--set {brief(path)}"))
    except KeyError as error:
        raise UserError(f"--set {shown(override)}: {error.args[0]}") from None


# ---------------------------------------------------------------- validation


def validate(values: dict[str, Any], source: str) -> Recipe:
    """The typed recipe; all errors are reported together, after `source`."""
    recipe, found = check(values)
    if recipe is None:
        mistakes.refuse(source, found)
    return recipe


def check(values: dict[str, Any]) -> tuple[Recipe | None, list[Mistake]]:
    """The typed recipe, or everything that is wrong with it."""
    recipe, found = _typed(values)
    if recipe is not None:
        found = _never_constrained(recipe)
    return (None if found else recipe), found


def _typed(values: dict[str, Any]) -> tuple[Recipe | None, list[Mistake]]:
    """The typed recipe, or everything in which it does not fit the schema."""
    schema, unknown = _typed_schema(values)
    try:
        recipe = schema.model_validate(values)
    except ValidationError as error:
        return None, [*unknown, *mistakes.explain(schema, error)]
    return (None if unknown else _with_schedule(recipe)), unknown


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


def _never_constrained(recipe: Recipe) -> list[Mistake]:
    """Refuse a constrained run that is all warm-up: it would be ERM under another name."""
    warmup, epochs = recipe.descent.warmup_epochs, recipe.training.epochs
    if warmup < epochs or not plugins.has("objective", recipe.objective, "is_constrained"):
        return []
    message = (
        f"{warmup} warm-up epochs of training.epochs = {epochs} leave no epoch with constraints; "
        f"lower descent.warmup_epochs, raise training.epochs above {warmup}, or choose objective "
        "erm"
    )
    return [Mistake(("descent", "warmup_epochs"), NO_VALUE, message)]


class _AnyNamedSection(NamedSection):
    """A section whose name is unknown: its other keys cannot be checked."""

    model_config = ConfigDict(extra="allow")


def _typed_schema(values: dict[str, Any]) -> tuple[type[Recipe], list[Mistake]]:
    """The recipe schema with `task` and `model` typed by the files they name, and a mistake for
    each unknown name.
    """
    sections: dict[str, type[NamedSection]] = {}
    unknown: list[Mistake] = []
    for kind in ("task", "model"):
        section = values.get(kind)
        name = section.get("name") if isinstance(section, dict) else None
        sections[kind] = _AnyNamedSection
        if isinstance(name, str):
            try:
                sections[kind] = plugins.section(kind, name)
            except UserError as error:
                unknown.append(Mistake((kind, "name"), NO_VALUE, str(error)))
    return _schema(sections["task"], sections["model"]), unknown


@functools.cache
def _schema(task: type[NamedSection], model: type[NamedSection]) -> type[Recipe]:
    """Made once for each pair: a sweep checks thousands of recipes, and making a schema takes
    milliseconds.
    """
    typed: dict[str, Any] = {"task": (task, ...), "model": (model, ...)}
    return create_model("Recipe", __base__=Recipe, **typed)
