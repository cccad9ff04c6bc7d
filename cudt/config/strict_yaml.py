"""YAML without surprises: `2e-5` is a number, `no` is a word, and a duplicate key is an error."""

from __future__ import annotations

import re
from typing import Any

import yaml

from cudt.utils.errors import UserError

_TAG = "tag:yaml.org,2002:"


_SCALARS = (
    ("null", r"null|~|", ["n", "~", ""]),
    ("bool", r"true|false", list("tf")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
        list("-+0123456789."),
    ),
)


def _strict(loader: Any) -> Any:
    """A loader with the scalars of YAML 1.2 (no octal, sexagesimal, dates or yes/no) and unique keys."""

    class Strict(loader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key.start_mark)
                if key.value in seen:
                    problem = f"duplicate key '{key.value}'; remove one"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    Strict.yaml_implicit_resolvers = {}
    for name, pattern, first in _SCALARS:
        Strict.add_implicit_resolver(f"{_TAG}{name}", re.compile(f"^(?:{pattern})$"), first)
    Strict.add_constructor(f"{_TAG}int", lambda loader, node: int(node.value))
    return Strict


#: libyaml is many times faster, if PyYAML was built with it; PyYAML's own parser has better error messages.
_FAST, _CLEAR = _strict(getattr(yaml, "CSafeLoader", yaml.SafeLoader)), _strict(yaml.SafeLoader)


def parse(text: str, source: str) -> Any:
    """The value of a YAML text; errors name `source` and the line."""
    try:
        return yaml.load(text, Loader=_FAST)
    except (yaml.YAMLError, ValueError, KeyError):
        return _parse_clearly(text, source)


def _parse_clearly(text: str, source: str) -> Any:
    """Parse again, for the better error message."""
    try:
        return yaml.load(text, Loader=_CLEAR)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{source}{line}: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, KeyError) as error:
        raise UserError(f"{source}: {' '.join(str(error).split())}") from None


def parse_mapping(text: str, source: str) -> dict[str, Any]:
    """The same for a text that must consist of `key: value` lines."""
    value = parse(text, source)
    if not isinstance(value, dict):
        raise UserError(f"{source}: expected `key: value` lines, got {type(value).__name__}")
    return {str(key): item for key, item in value.items()}


class _StrictDumper(yaml.SafeDumper):
    """Quotes only what the strict loader would read back differently."""


_StrictDumper.yaml_implicit_resolvers = _CLEAR.yaml_implicit_resolvers


def dump(value: Any) -> str:
    """YAML text with keys in their order; `parse` reads it back to the same value."""
    return yaml.dump(value, Dumper=_StrictDumper, sort_keys=False, allow_unicode=True, width=100)


def dump_line(value: Any) -> str:
    """A value on one line, as it is written after a key."""
    text = yaml.dump(
        value, Dumper=_StrictDumper, sort_keys=False, allow_unicode=True, default_flow_style=True, width=1e6
    )
    # PyYAML ends a document that is a plain scalar with three dots.
    return text.removesuffix("\n").removesuffix("...").strip()
