"""The run folder: what a run leaves behind, always whole on disk.

    outputs/<recipe>/<objective>-<identity>/
        recipe.yaml     every setting
        run.json        status, versions, seed, σ_x, the verdict per layer
        history.csv     step, epoch, split, layer, name, value
        layers.csv      split, perturbation, gamma, layer, loss, metric
        layer_metrics.csv  perturbation, gamma, layer, name, value (video: PSNR)
        ood.csv         perturbation, gamma, seed, metric, value, n
        validation.csv  the same on validation data, where a sweep chose by it
        examples.parquet  perturbation, gamma, seed, id, weight, score: the last layer's score of each test example;
                        what the metric makes of their weighted mean (run.json: metric.of_mean) stands in ood.csv
        ratios.csv      perturbation, gamma, layer, name, value
        ratio_bins.csv  perturbation, gamma, left, right, share, cumulative
        checkpoints/    last.pt (goes on from here), best.safetensors (evaluated)
        samples/        pictures of test examples (video)
        completions/    answers to instructions, as AlpacaEval reads them
        model/          the best model as transformers or peft loads it, with a card (pretrained text models)

Tables are long, so that their columns never change. Every file is written under another name and renamed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from cudt.config import recipe as recipes
from cudt.config.recipe import NamedRecipe
from cudt.runs.info import FORMAT, FinishedInfo, RunInfo, read_finished_info, read_format, read_info, write_info
from cudt.utils.errors import DataWarning, UserError, did_you_mean
from cudt.utils.files import write_atomically, write_if_changed, write_text

TABLES = {
    "history": ["step", "epoch", "split", "layer", "name", "value"],
    "layers": ["split", "perturbation", "gamma", "layer", "loss", "metric"],
    "layer_metrics": ["perturbation", "gamma", "layer", "name", "value"],
    "ood": ["perturbation", "gamma", "seed", "metric", "value", "n"],
    "validation": ["perturbation", "gamma", "seed", "metric", "value", "n"],
    "ratios": ["perturbation", "gamma", "layer", "name", "value"],
    "ratio_bins": ["perturbation", "gamma", "left", "right", "share", "cumulative"],
}
_NUMBERS = {
    "history": ["value"],
    "layers": ["gamma", "loss", "metric"],
    "layer_metrics": ["gamma", "value"],
    "ood": ["gamma", "value"],
    "validation": ["gamma", "value"],
    "ratios": ["gamma", "value"],
    "ratio_bins": ["gamma", "left", "right", "share", "cumulative"],
}
#: The columns of examples.parquet; a row for each example at each level would be slow as text.
EXAMPLES = {
    "perturbation": "str",
    "gamma": "float64",
    "seed": "int64",
    "id": "str",
    "weight": "float32",
    "score": "float64",
}


@dataclass(frozen=True)
class Run:
    """One run folder."""

    path: Path
    recipe: NamedRecipe

    @property
    def last_checkpoint(self) -> Path:
        return self.path / "checkpoints" / "last.pt"

    @property
    def best_weights(self) -> Path:
        return self.path / "checkpoints" / "best.safetensors"

    def load_best_weights(self) -> dict[str, Tensor]:
        """The weights of the best epoch, on the CPU."""
        try:
            return load_file(self.best_weights)
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"{self.best_weights}: missing or damaged ({error}); delete {self.path} to train anew"
            ) from None

    def load_last_checkpoint(self) -> dict[str, Any]:
        """Where training stands, on the CPU; refuses a damaged file, without trusting it."""
        try:
            return torch.load(self.last_checkpoint, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds over junk
            raise UserError(
                f"{self.last_checkpoint}: damaged ({type(error).__name__}); delete it to train from the beginning"
            ) from None

    def info(self) -> RunInfo:
        """run.json as it is now; all defaults where there is none yet."""
        return read_info(self.path)

    def finished_info(self) -> FinishedInfo:
        """run.json of a finished run; a UserError for a run that is not finished."""
        return read_finished_info(self.path)

    def update_info(self, changes: RunInfo) -> None:
        """Replace in run.json the keys that `changes` sets."""
        write_info(self.path, changes)

    def read_table(self, name: str) -> pd.DataFrame:
        """A table as a DataFrame, such as "ood", "layers" or "history"; empty if it is not written yet."""
        if name not in TABLES:
            hint = did_you_mean(name, TABLES) or ";"
            raise UserError(f"no table '{name}'{hint} a run has {', '.join(TABLES)}")
        path = self.path / f"{name}.csv"
        if not path.is_file():
            return _as_numbers(pd.DataFrame(columns=TABLES[name]), name)
        # Python's own parser: some versions of pandas are off in the last digit, and a resumed history must not be.
        table = pd.read_csv(path, converters=dict.fromkeys(_NUMBERS[name], float))
        if list(table.columns) != TABLES[name]:
            raise UserError(f"{path}: damaged (its columns are {', '.join(table.columns)})")
        return _as_numbers(table, name)

    def write_table(self, name: str, rows: pd.DataFrame) -> None:
        write_text(self.path / f"{name}.csv", rows[TABLES[name]].to_csv(index=False, na_rep="nan"))

    def merge_table(self, name: str, rows: pd.DataFrame, keys: list[str]) -> None:
        """Put rows into a table, in place of all that have the same keys."""
        joined = _merged(self.read_table(name), rows, keys)
        order = [column for column in ("split", "perturbation", "gamma") if column in joined.columns]
        self.write_table(name, joined.sort_values(order, kind="stable"))

    def read_examples(self, kind: str | None = None) -> pd.DataFrame:
        """The scores of single test examples, under all kinds of noise or one; empty where they were not kept."""
        path = self.path / "examples.parquet"
        if not path.is_file():
            return pd.DataFrame(columns=list(EXAMPLES)).astype(EXAMPLES)
        try:
            table = pd.read_parquet(path, filters=None if kind is None else [("perturbation", "==", kind)])
            if list(table.columns) != list(EXAMPLES):
                raise ValueError(f"its columns are {', '.join(table.columns)}")
            return table.astype(EXAMPLES)
        except Exception as error:  # pyarrow raises many kinds over junk
            reason = str(error).strip().split("\n")[0]
            raise UserError(f"{path}: damaged ({reason}); delete it and run `cudt eval-ood {self.path}`") from None

    def merge_examples(self, rows: pd.DataFrame, keys: list[str]) -> None:
        """Put rows in, in place of all that have the same keys; sorted, whatever order examples were met in."""
        joined = _merged(self.read_examples(), rows[list(EXAMPLES)].astype(EXAMPLES), keys)
        joined = joined.sort_values(["perturbation", "gamma", "seed", "id"], kind="stable")
        content = joined.to_parquet(index=False, compression="zstd")
        write_atomically(self.path / "examples.parquet", lambda file: file.write(content))

    @contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[None]:
        """Keep other processes from writing here; makes the folder, and ends with the process.

        Whoever is at work here is waited for, or is a reason to refuse.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            told = f"{self.path}: another process is at work on this run"
            if not wait:
                raise UserError(told) from None
            warnings.warn(f"{told}; waiting for it", DataWarning, stacklevel=3)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


def _merged(old: pd.DataFrame, rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The old rows whose keys are none of the new ones', and the new ones."""
    kept = old[~pd.MultiIndex.from_frame(old[keys]).isin(pd.MultiIndex.from_frame(rows[keys].drop_duplicates()))]
    return rows if kept.empty else pd.concat([kept, rows], ignore_index=True)


def _as_numbers(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Without rows, columns of numbers would be columns of anything, and make so every table they are joined to."""
    return table.astype(dict.fromkeys(_NUMBERS[name], float))


def run_for(recipe: NamedRecipe, out: Path) -> Run:
    """The folder that a recipe's run has; the same recipe is the same run. Creates nothing."""
    return Run(out / recipe.name / f"{recipe.settings.objective}-{recipe.identity()}", recipe)


def check_same_data(run: Run, fingerprint: str) -> None:
    """Refuse to go on with a run on other data than it began with: one run would tell of two experiments."""
    _refuse_other(run, run.info().training_data, fingerprint, "data, or texts with another tokenizer")


def check_same_test(run: Run, fingerprint: str) -> None:
    """Refuse to test a run on other data than before: one curve would tell of two experiments."""
    _refuse_other(run, run.info().test_data, fingerprint, "test data, or texts with another tokenizer")


def check_same_base(run: Run, digest: str) -> None:
    """Refuse frozen weights other than those that a run's learned ones were learned on top of."""
    _refuse_other(run, run.info().frozen_weights, digest, "pretrained weights under the same name")


def _refuse_other(run: Run, began_with: str | None, now: str, what: str) -> None:
    if began_with not in (None, now):
        raise UserError(
            f"'{run.path}' began with other {what} ({began_with}, now {now}); "
            "bring those back, or delete the folder to train anew"
        )


def write_recipe(run: Run) -> None:
    """Keep the recipe that a run follows, unless it stands there already."""
    write_if_changed(run.path / "recipe.yaml", run.recipe.text())


def open_run(path: Path) -> Run:
    """An existing run folder."""
    if not path.is_dir():
        raise UserError(f"run folder '{path}' does not exist")
    if not (path / "recipe.yaml").is_file() or not (path / "run.json").is_file():
        inside = sorted(found.parent for found in path.rglob("run.json"))
        hint = f"; it holds {len(inside)}, such as {inside[0]}" if inside else ""
        raise UserError(f"'{path}' is not a run folder (no recipe.yaml and run.json in it){hint}")
    _check_format(path)
    try:
        return Run(path, recipes.load_resolved(path / "recipe.yaml"))
    except UserError as error:
        between = "\n  " if "\n" in str(error) else " "
        raise UserError(f"{error}{between}(another version of cudt wrote it, or it was changed since)") from None


def _check_format(path: Path) -> None:
    """Before anything else is read, which another format may have elsewhere."""
    found = read_format(path)
    if found != FORMAT:
        written = "by an early version of cudt, without a run format" if found is None else f"in run format {found}"
        raise UserError(f"'{path}' was written {written}; this version reads format {FORMAT}")


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """Every run folder below some folders, sorted, each once."""
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"folder '{folder}' does not exist")
        # A run that was begun has its recipe before its run.json; a report names it all the same.
        paths = {file.parent for name in ("recipe.yaml", "run.json") for file in folder.rglob(name)}
        for path in sorted(paths):
            found.setdefault(path.resolve(), path)
    return list(found.values())
