"""YAML without surprises: `2e-5` is a number, `no` is a word, and a duplicate key is an error.

Only plain values are allowed: no tags, which make other types, and no anchors, with which a short
file grows endlessly.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from cudt.utils.errors import UserError

_TAG = "tag:yaml.org,2002:"
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

#: The scalars of YAML 1.2: no octal, sexagesimal, dates or yes/no.
_SCALARS = {
    "null": re.compile(r"(?:null|~|)\Z"),
    "bool": re.compile(r"(?:true|false)\Z"),
    "int": re.compile(r"[-+]?[0-9]+\Z"),
    "float": re.compile(
        r"(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan)\Z"
    ),
}
_RESOLVERS = {None: [(f"{_TAG}{kind}", pattern) for kind, pattern in _SCALARS.items()]}


class _StrictLoader(_Loader):
    """The scalars of YAML 1.2, and no key twice."""

    yaml_implicit_resolvers = _RESOLVERS

    def number(self, node: yaml.ScalarNode) -> float:
        return float(node.value.replace(".inf", "inf").replace(".nan", "nan"))

    def integer(self, node: yaml.ScalarNode) -> int:
        try:
            return int(node.value)
        except ValueError:
            raise _error(f"a number of {len(node.value)} digits is too long", node) from None

    def mapping(self, node: yaml.MappingNode) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _error("a key must be a word", key)
            if key.value in seen:
                raise _error(f"duplicate key '{key.value}'; remove one", key)
            seen.add(key.value)
            values[self.construct_object(key)] = self.construct_object(value, deep=True)
        return values


_StrictLoader.add_constructor(f"{_TAG}int", _StrictLoader.integer)
_StrictLoader.add_constructor(f"{_TAG}float", _StrictLoader.number)
_StrictLoader.add_constructor(f"{_TAG}map", _StrictLoader.mapping)


def _error(problem: str, at: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)


def parse(text: str, source: str) -> Any:
    """The value of a YAML text; errors name `source` and the line."""
    try:
        for event in yaml.parse(text, Loader=_Loader):
            if getattr(event, "anchor", None) is not None:
                raise _error("anchors and aliases are not allowed; repeat the value", event)
            if getattr(event, "tag", None) is not None:
                raise _error(
                    f"tag '{event.tag.replace(_TAG, '!!')}' is not allowed; remove it", event
                )
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{source}{line}: {error.problem or error.context}") from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise UserError(f"{source}: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UserError(f"{source}: nested too deep") from None


def read_text(path: Path) -> str:
    """The text of a YAML file."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not valid UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None


def parse_mapping(text: str, source: str) -> dict[str, Any]:
    """The same for a text that must consist of `key: value` lines."""
    value = parse(text, source)
    if not isinstance(value, dict):
        raise UserError(f"{source}: expected `key: value` lines, got {type(value).__name__}")
    return {str(key): item for key, item in value.items()}


class _StrictDumper(yaml.SafeDumper):
    """Quotes only what `parse` would read back differently, and repeats values instead of naming
    them.
    """

    yaml_implicit_resolvers = _RESOLVERS

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump(value: Any) -> str:
    """YAML text with keys in their order; `parse` reads it back to the same value."""
    return yaml.dump(value, Dumper=_StrictDumper, sort_keys=False, allow_unicode=True, width=100)


def dump_line(value: Any) -> str:
    """A value on one line, as it is written after a key."""
    text = yaml.dump(
        value,
        Dumper=_StrictDumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=True,
        width=1e6,
    )
    # PyYAML ends a document that is a plain scalar with three dots.
    return text.removesuffix("\n").removesuffix("...").strip()
