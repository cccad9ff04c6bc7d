"""Text classification on your own data: files (csv, tsv, json, jsonl, parquet) or any dataset on
the hub.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import model_validator

from cudt.config.alternatives import ColumnNames
from cudt.data.records import Columns, HubSet, Records, find_files, read_files
from cudt.data.splits import Split
from cudt.tasks.text_classification import TextClassification, TextConfig, build_text_task


class Config(TextConfig):
    """Your own texts and labels: files, or a dataset of the Hugging Face hub.

    Without `hub`, `train`, `validation` and `test` are files, relative to the data root or the
    current folder; `*` matches several. With `hub`, they are splits of that dataset.
    """

    train: str
    """Training file, or split of the hub dataset."""
    test: str
    """Test file, or split of the hub dataset."""
    validation: str | None = None
    """Validation file or split; null holds out `validation_share` of the training records."""
    text: ColumnNames
    """Column of the text, or a list of the two columns of a pair."""
    label: str
    """Column of the label, a word or an integer."""
    hub: str | None = None
    """Dataset on the Hugging Face hub, like `stanfordnlp/imdb`; null for files."""
    subset: str | None = None
    """Subset of the hub dataset, if it has several; only with hub."""

    @model_validator(mode="after")
    def _test_is_not_train(self) -> Config:
        if self.train in (self.test, self.validation):
            raise ValueError(
                "train names the same data as test or validation; give each split its own"
            )
        return self

    @model_validator(mode="after")
    def _belong_to_hub(self) -> Config:
        if self.subset is not None and self.hub is None:
            raise ValueError("subset is a part of a hub dataset; set hub too, or remove subset")
        if self.revision is not None and self.hub is None:
            raise ValueError(
                "revision is a version of a hub dataset; set hub too, or remove revision"
            )
        return self


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
