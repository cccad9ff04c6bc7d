"""Fuzzed data files, one for each seed, and a process that reads them with a limit on time and memory.

`python -m tests.faults.data_files` reads lines like `parquet 17` and answers each with a line of JSON.
`python -m tests.faults.data_files parquet 17 out/` writes the file of a seed, to look into what it breaks.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
import os
import random
import resource
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from cudt.data import frame_cache, hub
from cudt.data.clips import find_clips
from cudt.data.records import Columns, read_files
from cudt.data.token_cache import cut
from cudt.utils.errors import UserError
from tests.videos import drift, write_video

TEXT = Columns(("text",), "label")
#: What a file of a few kilobytes may cost.
SECONDS, MEGABYTES = 2, 200
#: More address space than this is refused, so that a bomb does not take the machine.
_SPACE = 6 << 30

# ---------------------------------------------------------------- valid files

_ROWS: list[dict[str, Any]] = [
    {"text": 'a "good" film, truly', "label": 1},
    {"text": "two\nlines; and é 漢字 🎬", "label": 0},
    {"text": "x" * 300, "label": 1},
    {"text": " ", "label": 0},
]


def _csv(rng: random.Random) -> bytes:
    separator = rng.choice(",;\t")
    rows = [("text", "label", "more"), *((row["text"].replace('"', '""'), row["label"], "") for row in _ROWS)]
    return "".join(separator.join(f'"{cell}"' for cell in row) + "\n" for row in rows).encode()


def _parquet(rng: random.Random) -> bytes:
    texts = [row["text"] for row in _ROWS] * rng.choice((1, 50))
    columns = {"text": texts, "label": [row["label"] for row in _ROWS] * (len(texts) // 4)}
    more: dict[str, list[Any]] = {"nested": [[1, 2], None, [], [3]] * (len(texts) // 4), "real": [0.5] * len(texts)}
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table({**columns, **(more if rng.random() < 0.5 else {})}),
        sink,
        compression=rng.choice(("none", "snappy", "gzip", "zstd")),
        use_dictionary=rng.random() < 0.5,
        data_page_version=rng.choice(("1.0", "2.0")),
        row_group_size=rng.choice((3, 1000)),
    )
    return sink.getvalue().to_pybytes()


def _image(rng: random.Random, suffix: str) -> bytes:
    mode = rng.choice({"png": ("L", "RGB", "P", "1", "RGBA", "LA"), "tif": ("L", "RGB", "P", "1", "CMYK")}[suffix])
    options: dict[str, Any] = {}
    if suffix == "tif":
        options["compression"] = rng.choice(("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"))
    file = io.BytesIO()
    pixels = np.random.default_rng(rng.randrange(2**32)).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(file, suffix.replace("tif", "tiff"), **options)
    return file.getvalue()


@functools.cache
def _video(codec: str, suffix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        pixels = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        return write_video(Path(folder, f"x.{suffix}"), drift(0, 6), codec, pixels).read_bytes()


@functools.cache
def model_folder() -> dict[str, bytes]:
    """The files of a tiny pretrained encoder."""
    from tests.pretrained import tiny_pretrained

    with tempfile.TemporaryDirectory() as folder:
        tiny_pretrained(Path(folder), num_hidden_layers=1)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


VALID: dict[str, Callable[[random.Random], bytes]] = {
    "csv": _csv,
    "tsv": _csv,
    "jsonl": lambda rng: "\n".join(json.dumps(row, ensure_ascii=rng.random() < 0.5) for row in _ROWS).encode(),
    "json": lambda rng: json.dumps(_ROWS, indent=rng.choice((None, 1))).encode(),
    "parquet": _parquet,
    "avi": lambda rng: _video(rng.choice(("mpeg4", "mjpeg")), "avi"),
    "mp4": lambda rng: _video("mpeg4", "mp4"),
    "mkv": lambda rng: _video("mpeg4", "mkv"),
    "tif": lambda rng: _image(rng, "tif"),
    "png": lambda rng: _image(rng, "png"),
    "model.safetensors": lambda rng: model_folder()["model.safetensors"],
    "config.json": lambda rng: model_folder()["config.json"],
    "tokenizer.json": lambda rng: model_folder()["tokenizer.json"],
}

# ---------------------------------------------------------------- damage

_EXTREMES = (0, 1, 0xFF, 0x7FFF, 0xFFFF, 10**9, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)


def _flip(content: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 2, 8, 64))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def _cut(content: bytearray, rng: random.Random) -> None:
    del content[rng.randrange(len(content)) :]


def _insert(content: bytearray, rng: random.Random) -> None:
    where = rng.randrange(len(content))
    content[where:where] = rng.randbytes(rng.choice((1, 3, 100)))


def _repeat(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content))
    block = content[start : start + rng.choice((1, 16, 500))]
    content[start:start] = block * rng.choice((1, 2, 50))


def _remove(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content))
    del content[start : start + rng.choice((1, 4, 100))]


def _erase(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content))
    stop = min(start + rng.choice((4, 64, 1000)), len(content))
    content[start:stop] = bytes([rng.choice((0, 255))]) * (stop - start)


def _extreme(content: bytearray, rng: random.Random) -> None:
    """Set what may be a length or an offset; headers are at the start or at the end."""
    width = rng.choice((2, 4, 8))
    if len(content) <= width:
        return
    number = (rng.choice(_EXTREMES) & (256**width - 1)).to_bytes(width, rng.choice(("little", "big")))
    limit = len(content) - width
    near = rng.randrange(min(limit, 256))
    start = rng.choice((near, limit - near, rng.randrange(limit)))
    content[start : start + width] = number


_DAMAGE = (_flip, _flip, _cut, _insert, _repeat, _remove, _erase, _extreme, _extreme, _extreme)


def _damaged(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if changed:
            rng.choice(_DAMAGE)(changed, rng)
    return bytes(changed)


# ---------------------------------------------------------------- nasty values

_LONG = "9" * 5000
_NASTY: tuple[Any, ...] = (
    *(None, True, 0.5, -1, 10**30, 1e308, float("nan"), float("inf"), "", " ", "\0", "\ud800", "\u202e", "a" * 10**6),
    *([], [[]], {}, {"a": {}}, "=cmd|calc", _LONG, "\r\n", '"', "é", "NaN", "1e5", 2**63, -(2**63), 10**9, 100_000_000),
)


def _as_json(value: Any) -> str:
    """As other programs may write it, too: NaN, an integer of 5,000 digits, brackets 10,000 deep."""
    return json.dumps(value).replace('"<long>"', _LONG).replace('"<deep>"', "[" * 10_000 + "]" * 10_000)


def _nasty(rng: random.Random) -> Any:
    # A copy, because others are put into it.
    return copy.deepcopy(rng.choice((*_NASTY, "<long>", "<deep>")))


def _nasty_rows(rng: random.Random) -> list[Any]:
    rows: list[Any] = [dict(row) for row in _ROWS]
    for _ in range(rng.choice((1, 2, 5))):
        if not isinstance(row := rng.choice(rows), dict):
            continue
        match rng.randrange(4):
            case 0:
                row[rng.choice(("text", "label"))] = _nasty(rng)
            case 1:
                row[str(_nasty(rng))[:10_000]] = _nasty(rng)
            case 2:
                row.pop(rng.choice(("text", "label")), None)
            case 3:
                rows.insert(rng.randrange(len(rows)), _nasty(rng))
    if rng.random() < 0.1:
        # Each row with a column of its own: as a table, the square of their number.
        rows += [{"text": "a", "label": 1, f"column {number}": 1} for number in range(6000)]
    return rows


def _nasty_csv(rng: random.Random) -> bytes:
    cell = lambda value: value if isinstance(value, str) else _as_json(value)  # noqa: E731
    rows = [[cell(row.get(name, _nasty(rng))) for name in ("text", "label")] for row in _ROWS]
    for _ in range(rng.choice((1, 2, 5))):
        row = rng.choice(rows)
        row[rng.randrange(len(row)) :] = [cell(_nasty(rng)) for _ in range(rng.choice((1, 1, 2, 5)))]
    quote = (lambda text: text) if rng.random() < 0.3 else lambda text: '"' + text.replace('"', '""') + '"'
    lines = [["text", "label"], *rows]
    return "\n".join(",".join(map(quote, line)) for line in lines).encode("utf-8", "surrogatepass")


def _nasty_document(content: bytes, rng: random.Random) -> bytes:
    """A JSON document with some values replaced or removed, at any depth."""
    document = json.loads(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        inner = document
        while True:
            key: Any = rng.choice([*inner]) if isinstance(inner, dict) else rng.randrange(len(inner))
            if isinstance(inner[key], dict | list) and inner[key] and rng.random() < 0.8:
                inner = inner[key]
                continue
            break
        if rng.random() < 0.15:
            del inner[key]
        else:
            inner[key] = _nasty(rng)
        if not document:
            break
    return _as_json(document).encode()


def _nasty_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Another header: wrong lengths, shapes, types, offsets, names; or numbers that are not finite."""
    (size,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
    name = rng.choice([key for key in header if key != "__metadata__"])
    tensor = header[name]
    claimed: int | None = None
    match rng.randrange(8):
        case 0:
            claimed = rng.choice((0, 1, 10**8, 2**63, 2**64 - 1, size - 1, size + 1))
        case 1:
            tensor["dtype"] = rng.choice(("F16", "I64", "BOOL", "F128", "", None, 5))
        case 2:
            tensor["shape"] = rng.choice(([], [-1], [2**63], [10**6, 10**6], [0], None, [1.5], tensor["shape"][::-1]))
        case 3:
            tensor["data_offsets"] = rng.choice(([0, 0], [0, 2**63], [len(data), 0], [0, 64], [-4, 0], [], "x"))
        case 4:
            del header[name]
        case 5:
            header[rng.choice(("x" * 1000, "\0", ""))] = header.pop(name)
        case 6:
            start, stop = tensor["data_offsets"]
            where = rng.randrange(start, stop, 4)
            data[where : where + 4] = struct.pack("<f", rng.choice((float("nan"), float("inf"), -float("inf"), 1e38)))
        case 7:
            header[name] = _nasty(rng)
    text = _as_json(header).encode()
    return struct.pack("<Q", len(text) if claimed is None else claimed) + text + bytes(data)


def fuzzed(kind: str, seed: int) -> bytes:
    """The file of a seed: a valid one that is damaged, or one with nasty values."""
    rng = random.Random(f"{kind} {seed}")
    valid = VALID[kind](rng)
    if rng.random() < 0.5:
        if kind in ("csv", "tsv"):
            return _nasty_csv(rng)
        if kind == "jsonl":
            return "\n".join(_as_json(row) for row in _nasty_rows(rng)).encode()
        if kind == "json":
            return _as_json(_nasty_rows(rng)).encode()
        if kind == "model.safetensors":
            return _nasty_safetensors(valid, rng)
        if kind in ("config.json", "tokenizer.json"):
            return _nasty_document(valid, rng)
    return _damaged(valid, rng)


# ---------------------------------------------------------------- reading one


def read(kind: str, content: bytes, folder: Path) -> None:
    """What cudt does with such a file before it trains."""
    if kind in ("csv", "tsv", "jsonl", "json", "parquet"):
        path = folder / f"x.{kind}"
        path.write_bytes(content)
        read_files([path], TEXT)
    elif "." in kind:
        for name, original in model_folder().items():
            (folder / name).write_bytes(content if name == kind else original)
        tokenizer = hub.load_tokenizer(str(folder), None)
        cut(tokenizer, [("the film was good",), ("",)], 8)
        if kind != "tokenizer.json":
            hub.load_encoder(str(folder), None)
    else:
        (folder / f"x.{kind}").write_bytes(content)
        frame_cache.prepare(find_clips(folder), 16, "clips")


def problem(answer: dict[str, Any]) -> str:
    """What should not have happened to a file; empty if it was read or refused in one line, in time and memory."""
    right = answer["result"] in ("read", "refused") and answer["seconds"] < SECONDS and answer["megabytes"] < MEGABYTES
    return "" if right else json.dumps(answer)


def outcome(kind: str, seed: int) -> dict[str, Any]:
    """What became of the file of a seed: `read`, `refused` or what should not happen; seconds and megabytes."""
    content = fuzzed(kind, seed)
    with tempfile.TemporaryDirectory() as name, patch.dict(os.environ, CUDT_CACHE=f"{name}/.cache"):
        before, started = _memory(reset=True), time.process_time()
        result, message = "read", ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(kind, content, Path(name))
        except UserError as error:
            result, message = "refused", str(error)
            if "\n" in message or len(message) > 1200 + len(name) or name not in message:
                result = "bad message"
        except BaseException as error:
            result, message = type(error).__name__, str(error)[:300]
        seconds, used = time.process_time() - started, _memory(reset=False) - before
    return {"kind": kind, "seed": seed, "result": result, "message": message, "seconds": seconds, "megabytes": used}


def _memory(reset: bool) -> float:
    """The largest resident memory since the last reset, in megabytes."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


@contextlib.contextmanager
def _silenced() -> Iterator[Any]:
    """A file in which everything ends up that libraries write to stderr and stdout."""
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        os.dup2(said.fileno(), 1)
        yield said


def serve() -> None:
    """Answer each line of standard input."""
    answers = os.fdopen(os.dup(1), "w")
    resource.setrlimit(resource.RLIMIT_AS, (_SPACE, _SPACE))
    warm_up()
    answers.write("ready\n")
    answers.flush()
    with _silenced() as said:
        for line in sys.stdin:
            kind, seed = line.split()
            start = os.fstat(said.fileno()).st_size
            answer = outcome(kind, int(seed))
            printed = os.pread(said.fileno(), 300, start).decode(errors="replace")
            answers.write(json.dumps({**answer, "printed": printed}) + "\n")
            answers.flush()


def warm_up() -> None:
    """Read a valid file of every kind, so that imports do not count."""
    for kind in VALID:
        with tempfile.TemporaryDirectory() as name, patch.dict(os.environ, CUDT_CACHE=f"{name}/.cache"):
            read(kind, VALID[kind](random.Random(0)), Path(name))


if __name__ == "__main__":
    if sys.argv[1:]:
        kind, seed, folder = sys.argv[1:]
        Path(folder, f"x.{kind}").write_bytes(fuzzed(kind, int(seed)))
    else:
        serve()
