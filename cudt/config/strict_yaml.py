"""YAML without surprises: `2e-5` is a number, `no` is a word, and a duplicate key is an error.

A file can be hostile: its size, its depth and its number of values (those that aliases repeat included) are bounded,
and only plain values are allowed, no tags of other types.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import yaml

from cudt.utils.errors import UserError
from cudt.utils.shown import shown

#: Bytes of a text. cudt's own files have some kilobytes.
MAX_BYTES = 1_000_000
_MAX_DEPTH = 50
_MAX_VALUES = 20_000
#: So many characters of a text count as one more value: aliases can repeat a long text as well.
_AS_ONE_VALUE = 100
#: A number beyond would be a typing error, and Python refuses to convert some thousand digits.
_MAX_DIGITS = 100
#: PyYAML's own parser has better error messages than libyaml, but would take seconds for longer texts.
_MAX_EXPLAINED = 50_000
_TAG = "tag:yaml.org,2002:"

#: The scalars of YAML 1.2: no octal, sexagesimal, dates or yes/no.
_SCALARS = {
    "null": re.compile(r"(?:null|~|)\Z"),
    "bool": re.compile(r"(?:true|false)\Z"),
    "int": re.compile(r"[-+]?[0-9]+\Z"),
    "float": re.compile(r"(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan)\Z"),
}
_CONSTRUCTORS: dict[str, Callable[[str], Any]] = {
    "null": lambda text: None,
    "bool": lambda text: text == "true",
    "int": int,
    "float": lambda text: float(text.replace(".inf", "inf").replace(".nan", "nan")),
    "str": str,
}
#: What no text of a recipe needs, and what would act on a terminal or fail in a file: control characters but tab and
#: line break, and halves of surrogate pairs.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
#: YAML itself has no others.
_NEVER_IN_YAML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def parse(text: str, source: str, *, allows_controls: bool = False) -> Any:
    """The value of a YAML text; errors name `source` and the line.

    `allows_controls` is for files that earlier versions wrote: control characters are allowed, and halves of surrogate
    pairs, which cannot be written to a file again, become U+FFFD.
    """
    if allows_controls:
        text = _ESCAPED_SURROGATE.sub(r"\\uFFFD", text)
    _check_text(text, source)
    reader = _EventReader(source, allows_controls)
    try:
        return reader.document(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        _refuse_clearly(text, source, error)


def read_text(path: Path) -> str:
    """The text of a YAML file; no more of it is read than a file of cudt can have."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_BYTES:
        raise UserError(f"{path}: larger than {MAX_BYTES:,} bytes; this is not a file of cudt")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        _refuse(str(path), content.count(b"\n", 0, error.start), "not valid UTF-8; save the file as UTF-8")


def _check_text(text: str, source: str) -> None:
    if len(text) > MAX_BYTES:
        raise UserError(f"{source}: larger than {MAX_BYTES:,} bytes; a file of cudt is far smaller")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        _refuse(source, text.count("\n", 0, error.start), "not valid UTF-8; save the file as UTF-8")
    if found := _NEVER_IN_YAML.search(text):
        line = text.count("\n", 0, found.start())
        _refuse(source, line, f"character {shown(found.group())} is not allowed; save the file as UTF-8 text")


def _refuse(source: str, line: int, problem: str) -> NoReturn:
    """Raise the error of a line, counted from 0."""
    raise UserError(f"{source}:{line + 1}: {problem}")


def _refuse_clearly(text: str, source: str, error: yaml.YAMLError) -> NoReturn:
    """Raise the error of a text that is not YAML, in the words of the clearer parser."""
    if len(text) <= _MAX_EXPLAINED:
        try:
            for _ in yaml.parse(text, Loader=yaml.SafeLoader):
                pass
        except yaml.YAMLError as clearer:
            error = clearer
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        _refuse(source, error.problem_mark.line, str(error.problem or error.context))
    raise UserError(f"{source}: {shown(' '.join(str(error).split()), 200)}") from None


class _EventReader:
    """Builds the values from the parser's events, and stops at the first that is not allowed."""

    def __init__(self, source: str, allows_controls: bool) -> None:
        self._source = source
        self._allows_controls = allows_controls
        self._n_values = 0
        self._anchors: dict[str, tuple[Any, int]] = {}

    def document(self, events: Iterator[Any]) -> Any:
        """The value of the only document; None if there is none."""
        value = None
        n_documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                n_documents += 1
                if n_documents > 1:
                    self._refuse(event, "a second document begins here; write one document in a file")
            elif isinstance(event, yaml.NodeEvent):
                value = self._value(event, events, 0)
        return value

    def _value(self, event: Any, events: Iterator[Any], depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._repeated(event)
        before = self._n_values
        self._count(event, 1 + len(getattr(event, "value", "")) // _AS_ONE_VALUE)
        if depth > _MAX_DEPTH:
            self._refuse(event, f"nested more than {_MAX_DEPTH} levels deep")
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(event, events, depth)
        else:
            value = self._mapping(event, events, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, self._n_values - before)
        return value

    def _count(self, event: Any, n_values: int) -> None:
        self._n_values += n_values
        if self._n_values > _MAX_VALUES:
            self._refuse(event, f"more than {_MAX_VALUES:,} values, those of aliases and the lengths of texts included")

    def _repeated(self, event: Any) -> Any:
        """The value of an alias, copied, so that a change of one does not change the other."""
        if event.anchor not in self._anchors:
            self._refuse(event, f"alias {shown(event.anchor)} names no value before it")
        value, size = self._anchors[event.anchor]
        self._count(event, size)
        return copy.deepcopy(value)

    def _sequence(self, start: Any, events: Iterator[Any], depth: int) -> list[Any]:
        self._check_tag(start, "seq")
        values = []
        for event in events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            values.append(self._value(event, events, depth + 1))
        return values

    def _mapping(self, start: Any, events: Iterator[Any], depth: int) -> dict[Any, Any]:
        self._check_tag(start, "map")
        values: dict[Any, Any] = {}
        seen: set[str] = set()
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse(event, "a key must be a word")
            if event.value in seen:
                self._refuse(event, f"duplicate key {shown(event.value)}; remove one")
            seen.add(event.value)
            key = self._value(event, events, depth + 1)
            values[key] = self._value(next(events), events, depth + 1)
        return values

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        if not self._allows_controls and (found := _FORBIDDEN.search(text)):
            self._refuse(event, f"character {shown(found.group())} is not allowed; remove it")
        if event.tag in (None, "!"):
            kind = _kind(text) if event.implicit[0] else "str"
        else:
            kind = self._check_tag(event, *_CONSTRUCTORS)
            is_valid = kind == "str" or _SCALARS[kind].match(text) or (kind == "float" and _SCALARS["int"].match(text))
            if not is_valid:
                self._refuse(event, f"expected a value of type {kind}, got {shown(text)}")
        if kind in ("int", "float") and len(text) > _MAX_DIGITS:
            self._refuse(event, f"a number of {len(text)} digits; at most {_MAX_DIGITS} are allowed")
        return _CONSTRUCTORS[kind](text)

    def _check_tag(self, event: Any, *allowed: str) -> str:
        """The kind that an event's tag names, without `!!`."""
        if event.tag in (None, "!"):
            return allowed[0]
        kind = event.tag.removeprefix(_TAG)
        if kind not in allowed or not event.tag.startswith(_TAG):
            name = event.tag.replace(_TAG, "!!")
            self._refuse(event, f"tag {shown(name)} is not allowed here; remove it")
        return kind

    def _refuse(self, event: Any, problem: str) -> NoReturn:
        _refuse(self._source, event.start_mark.line, problem)


def _kind(text: str) -> str:
    return next((kind for kind, pattern in _SCALARS.items() if pattern.match(text)), "str")


def parse_mapping(text: str, source: str, *, allows_controls: bool = False) -> dict[str, Any]:
    """The same for a text that must consist of `key: value` lines."""
    value = parse(text, source, allows_controls=allows_controls)
    if not isinstance(value, dict):
        raise UserError(f"{source}: expected `key: value` lines, got {type(value).__name__}")
    return {str(key): item for key, item in value.items()}


class _StrictDumper(yaml.SafeDumper):
    """Quotes only what `parse` would read back differently."""


_StrictDumper.yaml_implicit_resolvers = {
    None: [(f"{_TAG}{kind}", pattern) for kind, pattern in _SCALARS.items()],
}


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
