"""The run folder: the files of one run.

    outputs/<recipe>/<objective>-<identity>/
        recipe.yaml     every setting
        run.json        status, versions, seed, σ_x, the verdict per layer (info.py)
        history.csv     step, epoch, split, layer, name, value
        layers.csv      split, perturbation, gamma, layer, loss, metric
        layer_metrics.csv  perturbation, gamma, layer, name, value (video: PSNR)
        ood.csv         perturbation, gamma, seed, metric, value, n
        validation.csv  the same on validation data, for sweeps that select by it
        examples.parquet  perturbation, gamma, seed, id, weight, score: the last layer's score of each test example;
                        ood.csv has the metric of their weighted mean (run.json: metric.of_mean)
        ratios.csv      perturbation, gamma, layer, name, value
        ratio_bins.csv  perturbation, gamma, left, right, share, cumulative
        constraints.csv  perturbation, gamma, layer, loss, allowed, violation, standard_error, verdict
        descent.csv     perturbation, gamma, layer, name, value: the constraints of each level in numbers
        exits.csv       split, perturbation, gamma, seed, rule, point, threshold, chosen, accuracy, full_accuracy,
                        mean_depth, flops, full_flops, n (early exit)
        checkpoints/    best.safetensors and last.safetensors (the weights); until the run is finished, the two newest
                        checkpoints, each a folder checkpoint-<number>
        samples/        pictures of test examples (video)
        completions/    answers to instructions, in AlpacaEval's format
        last/           the same tables, from `eval-ood --weights last`; best/ if training.select is last
        on-<name>/      the same tables, from `eval-ood --on <name>`: test data of another task or recipe

history.csv is appended to while the run trains. Every other file is written under a temporary name
and renamed, so that it is always complete.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from cudt.config.recipe import NamedRecipe
from cudt.config.schema import NamedSection, Weights
from cudt.runs import checksums, examples, info, tables
from cudt.runs.examples import Part, Pieces
from cudt.runs.info import FinishedInfo, RunInfo, Subfolder
from cudt.runs.predictions import Predictions
from cudt.tasks.other_data import OtherData
from cudt.utils import processes
from cudt.utils.errors import DataWarning, UserError
from cudt.utils.files import delete_temporaries

if TYPE_CHECKING:
    import pandas as pd

#: Whoever writes into a run folder holds the lock of this file.
LOCK_FILE = ".lock"
#: Seconds to wait for the lock before the run counts as in use.
_PATIENCE = 0.2


@dataclass(frozen=True)
class Run:
    """One run folder and the recipe of its run."""

    path: Path
    recipe: NamedRecipe
    other_weights: Weights | None = None
    """Weights to evaluate that are not the run's own; see `with_weights`."""
    other_data: OtherData | None = None
    """Test data that are not of the run's own task; see `on`."""

    def with_weights(self, weights: Weights | None) -> Run:
        """The run with its best or its last weights; None for its own, which `training.select`
        names.

        Tables and other results of weights that are not the run's own are in a subfolder, so that
        nothing mixes them. The verdicts in run.json stay those of the run's own weights.
        """
        return replace(
            self, other_weights=None if weights == self.recipe.settings.training.select else weights
        )

    def on(self, data: OtherData | None) -> Run:
        """The run with test data of another task; None for its own. The results are in a subfolder,
        too.
        """
        return replace(self, other_data=data)

    @property
    def tested_task(self) -> NamedSection:
        """The section of the task whose test data are used."""
        return self.recipe.settings.task if self.other_data is None else self.other_data.task

    @property
    def inside(self) -> Subfolder:
        """Where the tables are, below the run folder."""
        return Subfolder(
            self.other_weights, None if self.other_data is None else self.other_data.folder
        )

    @property
    def weights(self) -> Weights:
        """Which weights are evaluated."""
        return self.other_weights or self.recipe.settings.training.select

    @property
    def results(self) -> Path:
        """The folder of the tables: the run folder, or the subfolder of weights or data that are
        not its own.
        """
        return self.path.joinpath(*self.inside.parts)

    @property
    def shown_as(self) -> str:
        """The name of the folder of the tables, below the folder of the recipe."""
        return str(self.results.relative_to(self.path.parent))

    @property
    def label(self) -> str:
        """The name of the run folder; with `-last` or `-on-avenue` for weights or data that are not
        the run's own.
        """
        return "-".join([self.path.name, *self.inside.parts])

    @property
    def checkpoints(self) -> Path:
        """The folder of weights and checkpoints."""
        return self.path / "checkpoints"

    def weights_file(self, weights: Weights) -> Path:
        """The file of the best or of the last weights."""
        return self.checkpoints / f"{weights}.safetensors"

    def info(self) -> RunInfo:
        """run.json as it is now; all defaults if it does not exist yet."""
        return info.read_info(self.path, self.inside)

    def finished_info(self) -> FinishedInfo:
        """run.json of a finished run; a UserError for a run that is not finished."""
        return info.read_finished_info(self.path, self.inside)

    def update_info(self, changes: RunInfo) -> None:
        """Replace in run.json the keys that `changes` sets; for other weights or data, in the file
        of their folder.
        """
        if self.other_data is not None:
            # So that the folder says which data its results are of.
            changes = changes.model_copy(
                update={"other_task": self.other_data.task.model_dump(mode="json")}
            )
        info.write_info(self.path, changes, self.inside)

    def read_table(self, name: str) -> pd.DataFrame:
        """A table as a DataFrame, such as "ood", "layers" or "history"; empty if its file does not
        exist.
        """
        # Training has one history, whichever weights are evaluated.
        return tables.read_table(self.path if name == "history" else self.results, name)

    def replacing(self, name: str) -> AbstractContextManager[Path]:
        """A temporary file to be filled, which then replaces a file of the run; its SHA-256 is
        recorded.
        """
        return checksums.replacing_checked(self.path, name)

    def check(self, name: str) -> None:
        """Refuse a file that is not as it was written, with a DamagedFileError."""
        checksums.check_file(self.path, name)

    def check_file(self, name: str) -> None:
        """Refuse a table or examples.parquet that is not as it was written; one that was never
        written is no error.
        """
        folder = self.path if name == tables.file_of("history") else self.results
        if name == examples.FILE:
            examples.check(folder)
        else:
            tables.check(folder, name.removesuffix(".csv"))

    def write_table(self, name: str, rows: pd.DataFrame) -> None:
        """Write a table, replacing its file."""
        tables.write_table(self.results, name, rows)

    def merge_table(self, name: str, rows: pd.DataFrame, keys: list[str]) -> None:
        """Add rows to a table; they replace all rows with the same keys."""
        tables.merge_table(self.results, name, rows, keys)

    def read_examples(self, kind: str | None = None) -> pd.DataFrame:
        """The scores of single test examples, under one kind of noise or all; empty if there is no
        file.
        """
        return examples.read_examples(self.results, kind)

    def merge_examples(self, parts: Mapping[Part, Pieces], keys: list[str]) -> None:
        """Add scores of single test examples; they replace all rows with the same keys."""
        examples.merge_examples(self.results, parts, keys)

    def predict(
        self,
        texts: Sequence[str | Sequence[str]],
        exit: str | Mapping[str, float] | None = None,  # noqa: A002 (what the literature calls it)
        **options: Any,
    ) -> Predictions:
        """The class of each text, with early exit: `cudt.predict(run, texts, exit, …)`, which has
        all options.
        """
        # The model and its evaluation are in rooms below this one, so the method goes through the
        # public API.
        from cudt import predict

        return predict(self, texts, exit, **options)

    def tidy(self) -> None:
        """Delete the temporaries of killed writers, and settle the checksums that they
        announced.
        """
        delete_temporaries(self.path)
        for folder in {self.path, self.results}:
            checksums.settle(folder)

    @contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[None]:
        """Keep other processes from writing into the folder, which is created; the lock ends with
        the process.

        If another process holds the lock, wait for it or raise a UserError.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / LOCK_FILE)
        try:
            # A moment, because `cudt doctor` takes the lock to see whether the run is in use.
            lock.acquire(timeout=_PATIENCE)
        except Timeout:
            used = f"{self.path}: another process is using this run"
            if not wait:
                raise UserError(f"{used}; wait for it to end, or stop it") from None
            warnings.warn(f"{used}; waiting for it to end", DataWarning, stacklevel=3)
            lock.acquire()
        try:
            self.tidy()
            yield
        finally:
            lock.release()

    @contextmanager
    def locked_by_main(self, *, wait: bool = False) -> Iterator[None]:
        """The same in several processes: the main one holds the lock for all, which end the block
        together.
        """
        with self.locked(wait=wait) if processes.is_main_process() else nullcontext():
            processes.wait()
            yield
        processes.wait()


def write_recipe(run: Run) -> None:
    """Write the run's recipe into its folder, unless the file already has the same content."""
    checksums.write_checked(run.path, "recipe.yaml", run.recipe.text().encode())


def check_same_data(run: Run, fingerprint: str) -> None:
    """Refuse to resume or evaluate a run with other training data: its results would mix two
    experiments.
    """
    _refuse_other(run, run.info().training_data, fingerprint, "training data or tokenizer")


def check_same_test(run: Run, fingerprint: str) -> None:
    """Refuse to test a run on other data than before: one curve would mix two test sets."""
    before = run.info().test_data
    if run.other_data is not None and before not in (None, fingerprint):
        raise UserError(
            f"'{run.results}' has results of other test data (fingerprint {before}, now "
            f"{fingerprint}); "
            "restore the data, or delete this folder to evaluate again"
        )
    _refuse_other(run, before, fingerprint, "test data or tokenizer")


def check_same_base(run: Run, digest: str) -> None:
    """Refuse frozen weights other than those that the run was trained with."""
    _refuse_other(run, run.info().frozen_weights, digest, "pretrained weights of the same name")


def _refuse_other(run: Run, before: str | None, now: str, what: str) -> None:
    if before not in (None, now):
        raise UserError(
            f"'{run.path}' was started with other {what} (fingerprint {before}, now {now}); "
            "restore them, or delete the folder to train again"
        )
