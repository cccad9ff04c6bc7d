"""Fill in the generated parts of the docs (an MkDocs hook, named in mkdocs.yml).

A line `<!-- generated: commands -->` in a page is replaced by what the code says when the site is
built, `<!-- file: path -->` by that file, and `<!-- diff: path path -->` by the difference of two
programs. To see a part without building the site:

    python scripts/reference.py commands
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cudt.config.describe import KeyDoc

ROOT = Path(__file__).parent.parent
_MARKER = re.compile(r"^<!-- (generated|file|diff): (.+) -->$", re.MULTILINE)
_LANGUAGES = {".py": "python", ".sbatch": "bash"}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs calls this for every page before it is rendered."""
    return _MARKER.sub(lambda found: _FILLED[found[1]](*found[2].split()), markdown)


def example(path: str) -> str:
    """A file of the repository as a block of code."""
    text = (ROOT / path).read_text(encoding="utf-8").strip()
    return f'```{_LANGUAGES[Path(path).suffix]} title="{path}"\n{text}\n```'


def difference(old: str, new: str) -> str:
    """What changes from one program to another, without their docstrings, as a block of code."""
    before, after = (
        (ROOT / path).read_text(encoding="utf-8").partition('"""\n\n')[2].splitlines()
        for path in (old, new)
    )
    _, _, *lines = difflib.unified_diff(before, after, lineterm="")
    lines = [line for line in lines if not line.startswith("@@")]
    return "```diff\n" + "\n".join(lines) + "\n```"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; line breaks and bars inside cells are made safe."""
    lines = [header, ["---"] * len(header)]
    lines += [[re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# ---------------------------------------------------------------- commands


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
        yield from walk((*names, name), below)


def _command(names: tuple[str, ...], command: Any) -> str:
    help_text = "\n".join(line.strip() for line in (command.help or "").splitlines())
    shown = (command.epilog or "").removeprefix("Example: ")
    parts = [f"### `{' '.join(names)}`", help_text, f"```\n{shown}\n```" if shown else ""]
    parameters = [one for one in command.params if not one.hidden and one.name != "help"]
    if parameters:
        parts.append(table(("option", "default", "meaning"), [*map(_parameter, parameters)]))
    return "\n\n".join(filter(None, parts))


def _parameter(parameter: Any) -> tuple[str, str, str]:
    if parameter.param_type_name == "argument":
        flags = [parameter.name.upper() + ("..." if parameter.nargs == -1 else "")]
    else:
        flags = [*parameter.opts, *parameter.secondary_opts]
    default = "required" if parameter.required else parameter.default
    if isinstance(parameter.show_default, str):
        default = parameter.show_default
    shown = "" if default in (None, "", [], (), False) or callable(default) else str(default)
    meaning = parameter.help or ""
    if parameter.envvar:
        meaning += f" Environment variable: `{parameter.envvar}`."
    return ", ".join(f"`{flag}`" for flag in flags), shown, meaning


# ---------------------------------------------------------------- recipes, Python, tables


def recipe_keys() -> str:
    """Every key of a recipe, then those of each task and model, from the schema."""
    from cudt.config import plugins
    from cudt.config.describe import describe
    from cudt.config.schema import Recipe

    sections = ["### All recipes", _key_table(describe(Recipe))]
    for kind in ("task", "model"):
        for name in plugins.names(kind):
            config = plugins.section(kind, name)
            keys = [key for key in describe(config, kind) if key.path != f"{kind}.name"]
            summary = (inspect.getdoc(config) or "").split("\n\n")[0]
            sections += [f"### `{kind}: {name}`", summary, _key_table(keys)]
    return "\n\n".join(sections)


def _key_table(keys: Sequence[KeyDoc]) -> str:
    rows = [(f"`{key.path}`", key.values, f"`{key.default}`", key.meaning) for key in keys]
    return table(("key", "values", "default", "meaning"), rows) if rows else "No keys of its own."


def api() -> str:
    """The public Python API: functions with their signatures, and docstrings."""
    import cudt

    sections = []
    for name in cudt.__all__:
        member = getattr(cudt, name)
        sections.append(f"### `{name}`")
        if inspect.isfunction(member):
            arguments = inspect.signature(member).parameters.values()
            names = [one.replace(annotation=inspect.Parameter.empty) for one in arguments]
            sections.append(f"```python\ncudt.{name}{inspect.Signature(names)}\n```")
        # An indented block of a docstring is code, which a blank line has to precede.
        text = inspect.getdoc(member) or ""
        sections.append(re.sub(r"(?m)^(\S.*)\n(?=    \S)", r"\1\n\n", text))
    return "\n\n".join(sections)


def tables() -> str:
    """The columns of every table in a run folder."""
    from cudt.runs.run import EXAMPLES, KEYS, TABLES

    columns = {f"{name}.csv": [*names] for name, names in TABLES.items()}
    of_layer = [f"{name}_l" for name in ("loss", "score", "confidence", "predicted")]
    columns[EXAMPLES] = [*KEYS, "id", "group", "weight", *of_layer]
    rows = [(f"`{name}`", ", ".join(map("`{}`".format, them))) for name, them in columns.items()]
    return table(("file", "columns"), rows)


PARTS: dict[str, Callable[[], str]] = {
    "api": api,
    "commands": commands,
    "recipe-keys": recipe_keys,
    "tables": tables,
}
_FILLED: dict[str, Callable[..., str]] = {
    "generated": lambda name: PARTS[name](),
    "file": example,
    "diff": difference,
}

if __name__ == "__main__":
    print("\n\n".join(PARTS[name]() for name in sys.argv[1:]))
