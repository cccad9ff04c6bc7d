"""IMDb: is a film review positive? (Maas et al., 2011; `stanfordnlp/imdb` of the hub)"""

from __future__ import annotations

from pathlib import Path

from cudt.tasks import Holding, _text
from cudt.tasks._records import Columns, HubSet
from cudt.tasks._text import TextClassification, TextConfig

SOURCE = HubSet("stanfordnlp/imdb", "plain_text")
COLUMNS = Columns(("text",), "label")


class Config(TextConfig):
    """IMDb has 25,000 reviews to train on and 25,000 to test."""


def build(config: Config, data_root: Path | None, pretrained: str | None) -> TextClassification:
    """The reviews, from `<data root>/imdb/plain_text/` or the hub."""
    return _text.build(
        config,
        lambda split: SOURCE.read(split, COLUMNS, data_root),
        {"train": "train", "test": "test"},
        data_root,
        pretrained,
    )


def holdings(data_root: Path | None) -> list[Holding]:
    return [SOURCE.holding(("train", "test"), data_root)]
