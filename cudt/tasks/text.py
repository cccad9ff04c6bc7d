"""Text classification on anyone's data: files (csv, tsv, json, jsonl, parquet) or any data set of the hub."""

from __future__ import annotations

from pathlib import Path

from pydantic import model_validator

from cudt.config.schema import ColumnNames
from cudt.data.records import Columns, HubSet, Records, find_files, read_files
from cudt.data.splits import Split
from cudt.tasks.text_classification import TextClassification, TextConfig, build_text_task


class Config(TextConfig):
    """Which columns of which files, or of which data set of the hub.

    `train`, `validation` and `test` name files below the data root (or from here; `*` stands for any letters), or,
    where `hub` is given, splits of that data set. Without `validation`, it is carved from the training data.
    """

    train: str
    test: str
    validation: str | None = None
    text: ColumnNames
    """The column of the text, or the two columns of a pair."""
    label: str
    hub: str | None = None
    subset: str | None = None

    @model_validator(mode="after")
    def _test_is_not_train(self) -> Config:
        if self.train in (self.test, self.validation):
            raise ValueError("train is also named as test or validation: a model would be judged on what it has seen")
        return self

    @model_validator(mode="after")
    def _subset_belongs_to_hub(self) -> Config:
        if self.subset is not None and self.hub is None:
            raise ValueError("subset names a part of a data set of the hub; give hub with it")
        return self


def build(config: Config, data_root: Path | None, pretrained: str | None) -> TextClassification:
    """The records that the recipe names."""
    columns = Columns((config.text,) if isinstance(config.text, str) else tuple(config.text), config.label)

    def read(name: str) -> Records:
        if config.hub is not None:
            return HubSet(config.hub, config.subset).read(name, columns, data_root)
        return read_files(find_files(name, data_root), columns)

    if config.hub is None:
        # Read when it is needed; that it is missing is told now.
        find_files(config.test, data_root)
    names: dict[Split, str] = {"train": config.train, "test": config.test}
    if config.validation is not None:
        names["validation"] = config.validation
    return build_text_task(config, read, names, data_root, pretrained)
