"""The `task` section of a recipe for each task that comes with cudt."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cudt.config import schema
from cudt.config.models import Revision
from cudt.config.schema import Count, NamedSection, Section

Share = Annotated[float, Field(gt=0, lt=1)]
LossName = Literal["cross_entropy", "brier", "clipped_cross_entropy"]
#: Tokens of a text.
Length = Annotated[int, Field(ge=4)]


class Limit(Section):
    """The largest number of examples of each split; they are drawn at random with `data_seed`."""

    train: Count | None = None
    """Training examples to use; null for all."""
    validation: Count | None = None
    """Validation examples to use; null for all."""
    test: Count | None = None
    """Test examples to use; null for all."""


class DataSection(NamedSection):
    """Keys of all tasks with data that are not generated."""

    limit: Limit = Limit()
    """Use at most this many examples of each split; all by default."""
    data_seed: schema.CountFromZero = 0
    """Seed of held-out examples and limited splits; separate from the run's seed."""


class HubSection(DataSection):
    """Keys of tasks whose data can come from the Hugging Face hub."""

    revision: Revision | None = None
    """Version of the dataset on the hub: a branch, a tag or the hash of a commit; null for the
    newest. With it, files below the data root are not read."""


class TextSection(HubSection):
    """Keys that all text classification tasks share."""

    max_length: Length | None = None
    """Most tokens of an example; null for the model's own limit, at most 512."""
    validation_share: Share = 0.1
    """Share of the training records held out for validation, if there is no validation split."""
    loss: LossName = "cross_entropy"
    """Loss f of all layers. The other two are bounded, as the paper's theory assumes: brier by 2,
    clipped_cross_entropy by log(100·K) for K classes."""


class Imdb(TextSection):
    """Keys of IMDb, which has 25,000 training reviews and 25,000 test reviews."""


class Mnli(TextSection):
    """Keys of MNLI. The labels of its test split are not public: a validation split serves."""

    max_length: Length | None = 128
    """Most tokens of a pair; null for the model's own limit, at most 512."""
    test: Literal["validation_matched", "validation_mismatched"] = "validation_matched"
    """Split that serves as test data: genres as in training, or other genres."""


class Text(TextSection):
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
    text: str | Annotated[list[str], Field(min_length=1, max_length=2)]
    """Column of the text, or a list of the two columns of a pair."""
    label: str
    """Column of the label, a word or an integer."""
    hub: str | None = None
    """Dataset on the Hugging Face hub, like `stanfordnlp/imdb`; null for files."""
    subset: str | None = None
    """Subset of the hub dataset, if it has several; only with hub."""


class Alpaca(HubSection):
    """Which instructions to use, and how to split them."""

    file: str | None = None
    """Your own file with `instruction`, `output` and optionally `input`, relative to the data root
    or the current folder; null for Alpaca."""
    max_length: Annotated[int, Field(ge=8)] = 512
    """Most tokens of prompt and response together; longer ones are cut."""
    validation_share: Share = 0.05
    """Share of the instructions held out for validation."""
    test_share: Share = 0.05
    """Share of the instructions held out for testing."""


class Reviews(NamedSection):
    """How many reviews to generate, and with which seed."""

    train: Count = 4000
    """Training reviews to generate."""
    validation: Count = 1000
    """Validation reviews to generate."""
    test: Count = 2000
    """Test reviews to generate."""
    data_seed: int = 0
    """Seed of the generated reviews; separate from the run's seed."""
    loss: LossName = "cross_entropy"
    """Loss f of all layers, as of other tasks."""


class VideoSection(DataSection):
    """Keys that all video tasks share."""

    frames: Count = 8
    """Frames T of a window, which is one example."""
    stride: Count = 4
    """Frames between the starts of training windows; validation and test windows do not overlap."""
    size: Count = 160
    """Height and width in pixels to which frames are resized."""
    validation_share: Share = 0.1
    """Share of each training clip, its end, held out if there are no validation clips."""


class Ucsd(VideoSection):
    """Keys of UCSD Pedestrian; the paper does not say which of its two walkways it uses."""

    subset: Literal["ped1", "ped2"] = "ped2"
    """Walkway: ped1 (towards the camera) or ped2 (across)."""


class Avenue(VideoSection):
    """Keys of Avenue, which has 16 training videos and 21 test videos."""


class ShanghaiTech(VideoSection):
    """Keys of ShanghaiTech, which has 330 training videos and 107 test clips."""


class Folder(VideoSection):
    """Folders of clips (videos or folders of frames), relative to the data root or the current
    folder.
    """

    train: str
    """Folder of the training clips."""
    test: str
    """Folder of the test clips."""
    validation: str | None = None
    """Folder of the validation clips; null holds out the end of each training clip."""


class Shapes(VideoSection):
    """How many clips to generate, and how long they are."""

    size: Count = 64
    """Height and width of frames in pixels."""
    train: Count = 16
    """Training clips to generate."""
    validation: Count = 4
    """Validation clips to generate."""
    test: Count = 4
    """Test clips to generate."""
    clip_length: Count = 24
    """Frames of each clip."""


TASKS: dict[str, type[NamedSection]] = {
    "alpaca": Alpaca,
    "avenue": Avenue,
    "folder": Folder,
    "imdb": Imdb,
    "mnli": Mnli,
    "reviews": Reviews,
    "shanghaitech": ShanghaiTech,
    "shapes": Shapes,
    "text": Text,
    "ucsd": Ucsd,
}
