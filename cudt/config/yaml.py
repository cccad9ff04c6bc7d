"""YAML 1.2 without surprises: `2e-5` is a number, `no` is a word, and a duplicate key is an error.

Only plain values are allowed: no tags, which make other types, and no anchors, with which a short
file grows endlessly.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from cudt.utils.errors import UserError

#: No octal or sexagesimal numbers, no dates, no yes and no.
_SCALARS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
}
_RESOLVERS = {
    None: [
        (f"tag:yaml.org,2002:{kind}", re.compile(rf"(?:{scalar})\Z"))
        for kind, scalar in _SCALARS.items()
    ]
}


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = _RESOLVERS

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) is not None:
            raise _error("anchors and aliases are not allowed; repeat the value", event)
        if getattr(event, "tag", None) is not None:
            raise _error(f"tag '{event.tag}' is not allowed; remove it", event)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise _error(f"duplicate key '{key.value}'; remove one", key)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


# YAML 1.1 reads 010 as eight.
_Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))


class _Dumper(yaml.SafeDumper):
    """Quotes only what `parse` would read back differently, and repeats values instead of naming
    them.
    """

    yaml_implicit_resolvers = _RESOLVERS

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _error(problem: str, at: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)


def parse(text: str, source: str) -> Any:
    """The value of a YAML text; errors name `source` and the line."""
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{source}{line}: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{source}: {' '.join(str(error).split())}") from None


def parse_mapping(text: str, source: str) -> dict[str, Any]:
    """The same for a text that must consist of `key: value` lines."""
    value = parse(text, source)
    if not isinstance(value, dict):
        found = "an empty file" if value is None else f"a {type(value).__name__}"
        raise UserError(f"{source}: must consist of `key: value` lines, got {found}")
    return {str(key): item for key, item in value.items()}


def read(path: Path) -> dict[str, Any]:
    """The values of a YAML file."""
    try:
        return parse_mapping(path.read_text(encoding="utf-8-sig"), str(path))
    except UnicodeDecodeError:
        raise UserError(f"{path}: not valid UTF-8; save the file as UTF-8") from None


def dump(value: Any) -> str:
    """YAML text with keys in their order; `parse` reads it back to the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def dump_line(value: Any) -> str:
    """A value on one line, as it is written after a key."""
    style: dict[str, Any] = {"default_flow_style": True, "allow_unicode": True, "width": 1e6}
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, **style)
    # PyYAML ends a document that is a plain scalar with three dots.
    return text.removesuffix("\n").removesuffix("...").strip()
