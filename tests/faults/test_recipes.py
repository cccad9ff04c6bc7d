"""Mutated recipes, searches, scales and overrides: each is valid or refused with a short error, at once."""

from __future__ import annotations

import copy
import functools
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cudt.config import recipe as recipes
from cudt.config import strict_yaml
from cudt.config.recipe import NamedRecipe
from cudt.models.base import build_model
from cudt.reproduce import scale as scales
from cudt.sweep import definition
from cudt.tasks.base import build_task
from cudt.utils.errors import UserError

_SECONDS = 2.0
_MEGABYTES = 200
_LONGEST = 2000

#: Values that no key expects, or that are at the end of what a type can hold.
NASTY: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**90),
    *(0.0, -0.0, 1e-320, 1e30, 1e300, float("inf"), float("-inf"), float("nan")),
    *("", " ", ".", "..", "/", "~", "null", "no", "=cmd|calc", "-rf", "@a", "a\nb", "a\x00b", "\x1b[31m", "\ud800"),
    *("x" * 1000, "é" * 300, "../" * 50, "a.b.c", "os.path", "this", "antigravity.x", "sys", "..", "a..b", ".a", "{}"),
    *(
        "0:1:0.1",
        "0:1e9:1e-9",
        "nan:1:1",
        "1:0:1",
        "0,0,0",
        ",",
        "1e400",
        "9" * 5000,
        "package:",
        "package:os/x",
        "$x$",
    ),
    *([], {}, [[]], [{}], {"": None}, {"name": None}, {"a": {"b": {}}}, [None], [1, "a", None], list(range(2000))),
    *(
        {"low": 1, "high": 0},
        {"low": 1e300, "high": 1e308},
        {"low": 0, "high": 1, "step": 1e-300},
        {"name": "unrolled"},
    ),
    *(
        {"low": -1e30, "high": 1e30, "step": 1e-30},
        {"target_loss": 1e-300},
        {"name": "shapes"},
    ),
    *({"sampler": "grid", "search": {}}, {"sampler": "seeds", "budget": 10**9}, {str(key): key for key in range(500)}),
]
#: Bytes with a meaning in YAML, in terminals or in encodings.
_BYTES = [
    *(
        b"\x00",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"\x1b",
        b"\r",
        b"\t",
        b"\n",
        b":",
        b"- ",
        b"? ",
    ),
    *(b"&a ", b"*a", b"<<: *a\n", b"!!float ''", b"!!timestamp abc", b"!!set [a]", b"!!python/name:os.system", b"!x "),
    *(
        b"[" * 3000,
        b"{a: " * 2000,
        b"---\n",
        b"...\n",
        b"%YAML 9.9\n---\n",
        b"|\n",
        b">\n",
        b"'",
        b'"',
        b"#",
        b"9" * 5000,
    ),
    *(
        b"base: " + b"x" * 5000 + b"\n",
        b"base: ../../../../dev/zero\n",
        b"name: -rf\n",
        b"name: sweeps\n",
        b"1e999",
        b".nan",
    ),
    b"a: &a ["
    + b"x," * 9
    + b"]\n"
    + b"".join(b"%c: &%c [" % (98 + i, 98 + i) + b"*%c," % (97 + i) * 9 + b"]\n" for i in range(9)),
]
_KEYS = [
    *("name", "base", "seed", "objective", "task", "task.name", "model", "model.name", "model.layers", "model.width"),
    *("model.pretrained", "training.epochs", "training.learning_rate", "training.batch_size", "descent.alpha", "noise"),
    *("descent.dual.learning_rate", "descent.beta", "evaluation.gammas", "evaluation.noise_seeds", "loading.workers"),
    *("", ".", "a..b", "task.name.x", "x" * 500, "\x1b[31m", "training", "published.erm", "checkpoints.keep", "a=b"),
]

# ---------------------------------------------------------------- mutations


@functools.cache
def _files(kind: str) -> list[bytes]:
    folder = {"recipe": recipes.folder(), "search": definition.folder(), "scale": scales.folder()}[kind]
    paths = [recipes.locate(name) for name in recipes.names()] if kind == "recipe" else sorted(folder.rglob("*.yaml"))
    return [path.read_bytes() for path in paths]


@st.composite
def _bytes_mutated(draw: st.DrawFn, kind: str) -> bytes:
    """A file with some bytes replaced, inserted, left out or repeated."""
    content = draw(st.sampled_from(_files(kind)))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        stop = min(len(content), start + draw(st.sampled_from([0, 0, 1, 3, 30])))
        new = draw(st.one_of(st.sampled_from(_BYTES), st.binary(max_size=5), st.just(content[start:stop] * 3)))
        content = content[:start] + new + content[stop:]
    return content


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value, sections included."""
    if path:
        yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _places(inner, (*path, key))


@st.composite
def _values_mutated(draw: st.DrawFn, kind: str) -> bytes:
    """A file with some values replaced, removed, renamed or added."""
    values = copy.deepcopy(strict_yaml.parse(draw(st.sampled_from(_files(kind))).decode(), kind))
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(values))
        if not places:
            break
        *sections, key = draw(st.sampled_from(places))
        inside = functools.reduce(lambda value, part: value[part], sections, values)
        what = draw(st.sampled_from(["replace", "replace", "replace", "remove", "rename", "move"]))
        if what == "remove" or (what == "rename" and isinstance(inside, list)):
            del inside[key]
        elif what == "rename":
            inside[draw(st.sampled_from([*_KEYS, 3, None, 1.5, True]))] = inside.pop(key)
        elif what == "move":
            other = draw(st.sampled_from(places))
            moved = functools.reduce(lambda value, part: value[part], other, values)
            inside[key] = copy.deepcopy(moved)
        else:
            inside[key] = copy.deepcopy(draw(st.sampled_from(NASTY)))
    return yaml.safe_dump(values, sort_keys=False).encode()


_override = st.builds(
    lambda key, sign, value: f"{key}{sign}{value}",
    st.sampled_from(_KEYS),
    st.sampled_from(["=", "=", "=", "=", "==", "", ":"]),
    st.one_of(
        st.sampled_from(NASTY).map(lambda value: value if isinstance(value, str) else yaml.safe_dump(value)),
        st.sampled_from(_BYTES).map(lambda value: value.decode("utf-8", "surrogateescape")),
        st.text(max_size=20),
    ),
)


# ---------------------------------------------------------------- the check


def check(load: Callable[[], Any]) -> Any:
    """What is loaded, or None if it is refused as it should be: at once, in little memory, with a short error."""
    # The processor's time: other processes may keep this one waiting.
    before, begun = _peak(), time.process_time()
    try:
        return load()
    except UserError as error:
        message = str(error)
        assert len(message) < _LONGEST
        assert all(line.isprintable() for line in message.split("\n")), message
        assert message.count("\n") <= 21
        return None
    finally:
        assert time.process_time() - begun < _SECONDS
        assert _peak() - before < _MEGABYTES


def _peak() -> float:
    """The most memory that the process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _write(folder: Path, content: bytes) -> str:
    path = folder / "mutated.yaml"
    path.write_bytes(content)
    return str(path)


def _build_if_small(named: NamedRecipe | None) -> None:
    """Build the task and the model of a valid recipe that needs no files."""
    if named is None or named.settings.task.name not in ("reviews", "shapes"):
        return
    task, model = named.settings.task, named.settings.model
    sizes = [value for value in task.model_dump().values() if isinstance(value, int)]
    if max(sizes) > 5000 or getattr(task, "size", 0) > 64 or not 0 < model.n_weights < 10**6:
        return
    with suppress(UserError):
        build_model(model, build_task(task, None, model.tokenizer_source), None)


def _check_file(kind: str, content: bytes, folder: Path) -> None:
    path = _write(folder, content)
    if kind == "recipe":
        _build_if_small(check(lambda: recipes.load(path)))
    elif kind == "search":
        found = check(lambda: definition.load(path))
        if found is not None:
            check(lambda: [found.listed(arm) for arm in found.search.arms])
            found.identity()
    else:
        check(lambda: scales.load(path))


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """Import what the first recipe, search and scale would import, which takes seconds."""
    for name in recipes.names():
        recipes.load(name)
    for name in definition.names():
        definition.load(name, None)
    scales.load("smoke")


def _examples(count: int) -> settings:
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    )


def _mutated(kind: str) -> st.SearchStrategy[bytes]:
    return st.one_of(_bytes_mutated(kind), _values_mutated(kind), _values_mutated(kind))


_OVERRIDES = st.tuples(st.sampled_from(recipes.names()), st.lists(_override, min_size=1, max_size=3))


def _check_overrides(name: str, changes: list[str]) -> None:
    _build_if_small(check(lambda: recipes.load(name, changes)))


@_examples(60)
@given(content=_mutated("recipe"))
def test_a_mutated_recipe(content, tmp_path):
    _check_file("recipe", content, tmp_path)


@_examples(35)
@given(content=_mutated("search"))
def test_a_mutated_search(content, tmp_path):
    _check_file("search", content, tmp_path)


@_examples(10)
@given(content=_mutated("scale"))
def test_a_mutated_scale(content, tmp_path):
    _check_file("scale", content, tmp_path)


@_examples(45)
@given(given_=_OVERRIDES)
def test_mutated_overrides(given_):
    _check_overrides(*given_)


@pytest.mark.soak
@_examples(2000)
@given(content=_mutated("recipe"))
def test_2000_mutated_recipes(content, tmp_path):
    _check_file("recipe", content, tmp_path)


@pytest.mark.soak
@_examples(1200)
@given(content=_mutated("search"))
def test_1200_mutated_searches(content, tmp_path):
    _check_file("search", content, tmp_path)


@pytest.mark.soak
@_examples(300)
@given(content=_mutated("scale"))
def test_300_mutated_scales(content, tmp_path):
    _check_file("scale", content, tmp_path)


@pytest.mark.soak
@_examples(1500)
@given(given_=_OVERRIDES)
def test_1500_mutated_overrides(given_):
    _check_overrides(*given_)
