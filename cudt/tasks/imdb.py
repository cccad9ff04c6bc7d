"""IMDb: sentiment of film reviews (Maas et al., 2011; `stanfordnlp/imdb` on the hub)."""

from __future__ import annotations

from pathlib import Path

from cudt.config import tasks as sections
from cudt.data.dataset_status import DatasetStatus
from cudt.data.records import Columns, HubSet
from cudt.tasks.text_classification import TextClassification, build_text_task

SOURCE = HubSet("stanfordnlp/imdb", "plain_text")
COLUMNS = Columns(("text",), "label")


Config = sections.Imdb


def build(config: Config, data_root: Path | None, pretrained: str | None) -> TextClassification:
    """The task on the reviews from `<data root>/imdb/plain_text/` or the hub."""
    return build_text_task(
        config,
        lambda split: SOURCE.at(config.revision).read(split, COLUMNS, data_root),
        {"train": "train", "test": "test"},
        data_root,
        pretrained,
    )


def datasets(data_root: Path | None) -> list[DatasetStatus]:
    return [SOURCE.status(("train", "test"), data_root)]
