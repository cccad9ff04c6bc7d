"""Text classification on your own data: files (csv, tsv, json, jsonl, parquet) or any dataset on
the hub.
"""

from __future__ import annotations

from pathlib import Path

from cudt.config import tasks as sections
from cudt.data.records import Columns, HubSet, Records, find_files, read_files
from cudt.data.splits import Split
from cudt.tasks.text_classification import TextClassification, build_text_task

Config = sections.Text


def build(config: Config, data_root: Path | None, pretrained: str | None) -> TextClassification:
    """The task on the files or splits that the recipe names."""
    columns = Columns(
        (config.text,) if isinstance(config.text, str) else tuple(config.text), config.label
    )

    def read(name: str) -> Records:
        if config.hub is not None:
            return HubSet(config.hub, config.subset, config.revision).read(name, columns, data_root)
        return read_files(find_files(name, data_root), columns)

    if config.hub is None:
        # The file is read later, but a missing file is reported now.
        find_files(config.test, data_root)
    names: dict[Split, str] = {"train": config.train, "test": config.test}
    if config.validation is not None:
        names["validation"] = config.validation
    return build_text_task(config, read, names, data_root, pretrained)
