"""Fill in the generated parts of docs/reference (an MkDocs hook, named in mkdocs.yml).

A line `<!-- generated: commands -->` in a page is replaced by what the code says when the site is
built, and `<!-- file: path -->` by that file, and `<!-- diff: path path -->` by the difference of
two programs, so that none of them can go stale. To see a part without building the site:

    python scripts/reference.py commands
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cudt.config.describe import KeyDoc

ROOT = Path(__file__).parent.parent
_MARKER = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.MULTILINE)
_EXAMPLE = re.compile(r"^<!-- file: ([\w/.]+) -->$", re.MULTILINE)
_DIFFERENCE = re.compile(r"^<!-- diff: ([\w/.]+) ([\w/.]+) -->$", re.MULTILINE)
#: The class or module behind each kind of plug-in: title, module, classes.
CONTRACTS = (
    ("Model", "cudt.models.base", ("LayeredModel",)),
    ("Task", "cudt.tasks.base", ("Task",)),
    ("Noise", "cudt.noise", ("SignalNoise", "TextNoise")),
    ("Objective", "cudt.method.objectives", ("Objective",)),
    ("Figure", "cudt.report.charts", ("Figure", "View", "Drawing")),
)
#: The parts of run.json by the class that describes them.
RUN_INFO = {
    "MetricInfo": "`metric`",
    "BestEpoch": "`best`",
    "StoppedEarly": "`stopped_early`",
    "SigmaX": "`sigma_x`",
    "VerdictInfo": "each of `verdicts`",
    "OtherTest": "each of `other_tests`, by name",
    "RunInfo": "The file",
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs calls this for every page before it is rendered."""
    markdown = _EXAMPLE.sub(lambda found: example(found.group(1)), markdown)
    markdown = _DIFFERENCE.sub(lambda found: difference(*found.groups()), markdown)
    return _MARKER.sub(lambda found: PARTS[found.group(1)](), markdown)


def example(path: str) -> str:
    """A file of the repository as a block of code, so that examples are files that tests run."""
    language = {".py": "python", ".sbatch": "bash"}.get(Path(path).suffix, Path(path).suffix[1:])
    return f'```{language} title="{path}"\n{(ROOT / path).read_text(encoding="utf-8").strip()}\n```'


def difference(old: str, new: str) -> str:
    """What changes from one program to another, without their docstrings, as a block of code."""
    programs = [
        (ROOT / path).read_text(encoding="utf-8").partition('"""\n\n')[2].splitlines()
        for path in (old, new)
    ]
    lines = [
        line
        for line in difflib.unified_diff(*programs, lineterm="")
        if not line.startswith(("---", "+++", "@@"))
    ]
    return "```diff\n" + "\n".join(lines) + "\n```"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; line breaks and bars inside cells are made safe."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += [
        "| " + " | ".join(re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in row) + " |"
        for row in rows
    ]
    return "\n".join(lines)


def commands() -> str:
    """Every command with its arguments and options, as Typer knows them."""
    import typer

    from cudt.cli.main import app

    return "\n\n".join(
        _command(names, command) for names, command in walk(("cudt",), typer.main.get_command(app))
    )


def walk(names: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A command and those below it, each with its full name."""
    yield names, command
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from walk((*names, name), below)


def _command(names: tuple[str, ...], command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    synopsis = " ".join([*names, *(_usage(one) for one in arguments), "[OPTIONS]"])
    help_text = "\n".join(
        line.strip() for line in (command.help or "").replace("\b", "").splitlines()
    )
    example_line = (command.epilog or "").removeprefix("Example: ")
    parts = [
        f"## `{' '.join(names)}`",
        help_text,
        f"```\n{synopsis}\n{example_line}".rstrip() + "\n```",
    ]
    if rows := [_parameter(one) for one in command.params if not one.hidden and one.name != "help"]:
        parts.append(table(("option", "default", "meaning"), rows))
    return "\n\n".join(parts)


def _usage(argument: Any) -> str:
    name = (argument.metavar or argument.name).upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _parameter(parameter: Any) -> tuple[str, str, str]:
    is_argument = parameter.param_type_name == "argument"
    flags = [_usage(parameter)] if is_argument else [*parameter.opts, *parameter.secondary_opts]
    meaning = parameter.help or ""
    if parameter.envvar:
        meaning += f" Environment variable: `{parameter.envvar}`."
    return ", ".join(f"`{flag}`" for flag in flags), _shown_default(parameter), meaning


def _shown_default(parameter: Any) -> str:
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    if parameter.required:
        return "required"
    default = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
    return "" if default in (None, "", [], (), False) or callable(default) else f"`{default}`"


@dataclass(frozen=True)
class Member:
    """A member of a plug-in's base class: how it is written, what it means, and whether a plug-in
    has to define it.
    """

    signature: str
    meaning: str
    is_required: bool


def contracts() -> str:
    """The base class of each kind of plug-in, member by member, from the docstrings in the code."""
    sections = []
    for title, module_name, classes in CONTRACTS:
        module = ast.parse(_source(module_name))
        sections += [f"## {title}", f"`{module_name}`", _prose(ast.get_docstring(module) or "")]
        for node in module.body:
            if isinstance(node, ast.ClassDef) and node.name in classes:
                rows = [
                    (f"`{one.signature}`", "yes" if one.is_required else "", one.meaning)
                    for one in members(node)
                ]
                sections += [f"### `{node.name}`", _prose(ast.get_docstring(node) or "")]
                sections.append(table(("member", "required", "meaning"), rows))
    return "\n\n".join(sections)


def _source(module_name: str) -> str:
    """The text of a module, which is not imported: most of them would import torch."""
    found = importlib.util.find_spec(module_name)
    return Path((found and found.origin) or "").read_text(encoding="utf-8")


def _prose(docstring: str) -> str:
    """A docstring as Markdown. Its indented blocks are code."""
    return re.sub(r"(?m)^(\S.*)\n(?=    \S)", r"\1\n\n", docstring)


def members(node: ast.ClassDef) -> Iterator[Member]:
    """The public attributes and methods of a class, in order."""
    for number, one in enumerate(node.body):
        if (
            isinstance(one, ast.AnnAssign)
            and isinstance(one.target, ast.Name)
            and not one.target.id.startswith("_")
        ):
            value = f" = {ast.unparse(one.value)}" if one.value else ""
            meaning = _string(node.body[number + 1]) if number + 1 < len(node.body) else ""
            yield Member(
                f"{one.target.id}: {ast.unparse(one.annotation)}{value}", meaning, one.value is None
            )
        elif isinstance(one, ast.FunctionDef) and not one.name.startswith("_"):
            decorators = {ast.unparse(decorator) for decorator in one.decorator_list}
            arguments = "" if "property" in decorators else f"({_arguments(one.args)})"
            meaning = (ast.get_docstring(one) or "").replace("\n", " ")
            yield Member(one.name + arguments, meaning, "abstractmethod" in decorators)


def _string(node: ast.stmt) -> str:
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ):
        return node.value.value
    return ""


def _arguments(arguments: ast.arguments) -> str:
    return ", ".join(
        one.arg
        for one in (*arguments.args, *arguments.kwonlyargs)
        if one.arg not in ("self", "cls")
    )


def recipe_keys() -> str:
    """Every key of a recipe, then those of each task and model, from the schema."""
    import inspect

    from cudt.config import plugins
    from cudt.config.describe import describe
    from cudt.config.schema import Recipe

    sections = ["### All recipes", _key_table(describe(Recipe))]
    for kind in ("task", "model"):
        for name in plugins.names(kind):
            config = plugins.section(kind, name)
            keys = [key for key in describe(config, kind) if key.path != f"{kind}.name"]
            summary = " ".join((inspect.getdoc(config) or "").split("\n\n")[0].split())
            sections += [f"### `{kind}: {name}`", summary, _key_table(keys)]
    return "\n\n".join(sections)


def _key_table(keys: Sequence[KeyDoc]) -> str:
    rows = [(f"`{key.path}`", key.values, _code(key.default), key.meaning) for key in keys]
    return table(("key", "values", "default", "meaning"), rows) if rows else "No keys of its own."


def _code(default: str) -> str:
    return default if default == "required" else f"`{default}`"


def api() -> str:
    """The functions of the public Python API, with their signatures and docstrings."""
    import cudt

    sections = []
    for name in cudt.__all__:
        found = getattr(cudt, name)
        if inspect.isfunction(found):
            signature = f"cudt.{name}{inspect.signature(found)}"
            text = _prose(inspect.getdoc(found) or "")
            sections += [f"### `{name}`", f"```python\n{signature}\n```", text]
    return "\n\n".join(sections)


def run_info() -> str:
    """The keys of run.json, from its typed model: a comment after a key is its meaning."""
    source = _source("cudt.runs.info")
    module, lines = ast.parse(source), source.splitlines()
    sections = []
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name in RUN_INFO:
            rows = [
                (f"`{one.target.id}`", f"`{_type(one)}`", lines[one.lineno - 1].partition("#")[2])
                for one in node.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            ]
            sections += [f"### {RUN_INFO[node.name]}", table(("key", "type", "meaning"), rows)]
    # The whole file first, then its parts.
    return "\n\n".join([*sections[-2:], *sections[:-2]])


def _type(key: ast.AnnAssign) -> str:
    return ast.unparse(key.annotation).removesuffix(" | None")


def tables() -> str:
    """The columns of every table in a run folder."""
    from cudt.runs.run import EXAMPLES, KEYS, TABLES

    columns = {
        **{f"{name}.csv": names for name, names in TABLES.items()},
        EXAMPLES: [*KEYS, "id", "group", "weight", "loss_1", "score_1", "confidence_1", "…"],
    }
    rows = [
        (f"`{name}`", ", ".join(f"`{column}`" for column in names))
        for name, names in columns.items()
    ]
    return table(("file", "columns"), rows)


PARTS: dict[str, Callable[[], str]] = {
    "api": api,
    "commands": commands,
    "contracts": contracts,
    "recipe-keys": recipe_keys,
    "run-info": run_info,
    "tables": tables,
}

if __name__ == "__main__":
    print("\n\n".join(PARTS[name]() for name in sys.argv[1:]))
