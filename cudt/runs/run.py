"""The run folder: the files of one run.

    outputs/<recipe>/<objective>-<identity>/
        recipe.yaml       every setting
        run.json          status, verdict, versions, σ_x, multipliers, SHA-256 of files (info.py)
        history.csv       what training measured: step, epoch, split, layer, name, value
        layers.csv        loss and metric of each layer, by split, data, weights, noise, gamma, seed
        ood.csv           the metric with its interval, by the same keys
        examples.parquet  loss, score, confidence and prediction of each example at each layer
        checkpoints/      best.safetensors and last.safetensors; in training, what it resumes from
        extra/            samples (pictures) and completions, if they were asked for

history.csv is appended to while the run trains. Every other file is written under a temporary name
and renamed. run.json has the SHA-256 of every file that is written whole: of both versions while
one replaces the other, so that a reader accepts it at any moment.
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from filelock import FileLock, Timeout
from pydantic import ValidationError

from cudt.config import recipe as recipes
from cudt.config.recipe import NamedRecipe
from cudt.config.schema import Weights
from cudt.runs.info import FinishedInfo, RunInfo
from cudt.utils import processes
from cudt.utils.errors import DamagedFileError, DataWarning, UserError
from cudt.utils.files import delete_temporaries, digest_of, files_below, replacing, write_text

if TYPE_CHECKING:
    import pandas as pd

#: What the rows of a table, and of examples.parquet, belong to.
KEYS = {"split": str, "data": str, "weights": str, "noise": str, "gamma": float, "seed": int}
#: The columns of each table and their types.
TABLES: dict[str, dict[str, type]] = {
    "history": {"step": int, "epoch": int, "split": str, "layer": int, "name": str, "value": float},
    "layers": {**KEYS, "layer": int, "loss": float, "metric": float, "standard_error": float},
    "ood": {**KEYS, "value": float, "low": float, "high": float, "input": float, "n": int},
}
EXAMPLES = "examples.parquet"
#: `data` of the test data of the run's own task.
OWN = "own"
#: Whoever writes into a run folder holds the lock of this file.
LOCK_FILE = ".lock"
#: Seconds to wait for the lock before the run counts as in use.
_PATIENCE = 0.2
#: What other commands than `cudt train` write.
_EVALUATED = ("ood.csv", EXAMPLES, "extra/")
_Info = TypeVar("_Info", bound=RunInfo)


@dataclass(frozen=True)
class RunFolder:
    """The files of a run, which can be read without the plug-ins that its recipe names."""

    path: Path

    # ---------------------------------------------------------------- run.json

    def info(self) -> RunInfo:
        """run.json as it is now; all defaults if it does not exist yet."""
        return self._validated(RunInfo)

    def finished_info(self) -> FinishedInfo:
        """run.json of a finished run; a UserError for a run that is not finished."""
        status = self.info().status
        if status != "finished":
            raise UserError(
                f"'{self.path}' is {status or 'not started'}, not finished; "
                "run `cudt train` with the same recipe and settings to resume it"
            )
        return self._validated(FinishedInfo)

    def update_info(self, changes: RunInfo) -> None:
        """Replace in run.json the keys that `changes` sets."""
        before = self._values()
        values = {**before, **changes.model_dump(exclude_unset=True)}
        if values == before:
            return
        text = json.dumps({**values, "sha256": _digest(values)}, indent=2, ensure_ascii=False)
        write_text(self.path / "run.json", f"{text}\n")

    def _validated(self, kind: type[_Info]) -> _Info:
        try:
            return kind.model_validate(self._values())
        except ValidationError as error:
            key, reason = ".".join(map(str, error.errors()[0]["loc"])), error.errors()[0]["msg"]
            raise self.damage("run.json", f"{key}: {reason}") from None

    def _values(self) -> dict[str, Any]:
        """run.json without the SHA-256 of itself; empty if there is none."""
        try:
            values: dict[str, Any] = json.loads((self.path / "run.json").read_bytes())
            if values.pop("sha256", None) != _digest(values):
                raise ValueError("its content is not what was written")
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise self.damage("run.json", str(error)) from None
        return values

    # ---------------------------------------------------------------- files

    @contextmanager
    def replacing(self, name: str) -> Iterator[Path]:
        """A temporary file to be filled, which then replaces a file of the run; its SHA-256 is
        recorded.
        """
        with replacing(self.path / name) as temporary:
            yield temporary
            new, before = digest_of(temporary), self.info().files.get(name, [None])
            self._record({name: [*dict.fromkeys([new, *before])]})
        self._record({name: [new]})

    def seal(self, *names: str) -> None:
        """Record the SHA-256 of files as they are now on disk."""
        self._record({name: [digest_of(self.path / name)] for name in names})

    def forget(self, *names: str) -> None:
        """Drop the SHA-256 of files that are to be deleted, or that the user has deleted."""
        if known := {*names} & {*self.info().files}:
            self._record({name: [] for name in known})

    def check(self, name: str) -> None:
        """Refuse a file that is not as it was written, with a DamagedFileError."""
        for _ in range(3):  # A writer may replace the file after its SHA-256 was read.
            accepted, file = self.info().files.get(name), self.path / name
            now = digest_of(file) if file.is_file() else None
            if accepted is None or now in accepted:
                return
        raise self.damage(name, "its content is not what was written" if now else "missing")

    def read(self, name: str) -> bytes:
        """The content of a file that is as it was written."""
        self.check(name)
        return (self.path / name).read_bytes()

    def damage(self, name: str, reason: str) -> DamagedFileError:
        """The error about a file, with what to do."""
        again = f"delete {self.path} to train again"
        if name.startswith(_EVALUATED):
            again = "delete it and repeat the command that wrote it"
        return DamagedFileError(self.path / name, reason, f"restore it, or {again}")

    def _record(self, changes: Mapping[str, Sequence[str | None]]) -> None:
        files = {**self.info().files, **changes}
        self.update_info(RunInfo(files={name: [*one] for name, one in files.items() if one}))

    # ---------------------------------------------------------------- tables

    def read_table(self, name: str) -> pd.DataFrame:
        """A table as a DataFrame: "ood", "layers" or "history"; without rows if it does not exist.

        A DamagedFileError if it is not as it was written.
        """
        import pandas as pd

        if name not in TABLES:
            raise UserError(f"no table '{name}'; a run has {', '.join(TABLES)}")
        types, file = TABLES[name], f"{name}.csv"
        try:
            content = self.read(file)
            # history.csv may grow while it is read: its last line may be incomplete.
            content = content[: content.rfind(b"\n") + 1]
            # As texts first: some versions of pandas lose the last digit of a number.
            table = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False)
            if list(table.columns) != list(types):
                raise ValueError(f"expected columns {', '.join(types)}")
            return table.astype(types)
        except FileNotFoundError:
            return pd.DataFrame({column: pd.Series(dtype=one) for column, one in types.items()})
        except (ValueError, OverflowError) as error:
            raise self.damage(file, str(error).strip().split("\n")[0]) from None

    def write_table(self, name: str, rows: pd.DataFrame) -> None:
        """Write a table, replacing its file."""
        with self.replacing(f"{name}.csv") as temporary:
            rows[[*TABLES[name]]].to_csv(temporary, index=False, na_rep="nan")

    def read_examples(self, columns: list[str] | None = None, **keys: object) -> pd.DataFrame:
        """Rows of examples.parquet, such as those with split="test", and some of its columns;
        without rows if it does not exist.
        """
        import pandas as pd

        filters = [(name, "==", value) for name, value in keys.items()] or None
        self.check(EXAMPLES)
        try:
            return pd.read_parquet(self.path / EXAMPLES, columns=columns, filters=filters)
        except FileNotFoundError:
            return pd.DataFrame(columns=columns or [*KEYS, "id", "group", "weight"])
        except (OSError, ValueError) as error:
            raise self.damage(EXAMPLES, str(error).strip().split("\n")[0]) from None

    def write_examples(self, rows: pd.DataFrame) -> None:
        """Write examples.parquet, replacing it."""
        with self.replacing(EXAMPLES) as temporary:
            rows.to_parquet(temporary, index=False, compression="zstd")

    # ---------------------------------------------------------------- one writer at a time

    @contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[None]:
        """Keep other commands from writing into the folder, which is created; the lock ends with
        the process. Of processes that work together, the main one holds it for all.

        If another command holds the lock, wait for it or raise a UserError.
        """
        if not processes.is_main_process():
            yield
            return
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / LOCK_FILE)
        try:
            lock.acquire(timeout=_PATIENCE)
        except Timeout:
            used = f"{self.path}: another process is using this run"
            if not wait:
                raise UserError(f"{used}; wait for it to end, or stop it") from None
            warnings.warn(f"{used}; waiting for it to end", DataWarning, stacklevel=3)
            lock.acquire()
        try:
            delete_temporaries(self.path)  # of killed writers
            yield
        finally:
            lock.release()


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Run(RunFolder):
    """A run folder and the recipe of its run; and which weights are tested on which data."""

    recipe: NamedRecipe
    other_weights: Weights | None = None
    """Weights that are not the run's own; see `with_weights`."""
    data: str = OWN
    """The test data, as tables call them."""

    def with_weights(self, weights: Weights | None) -> Run:
        """The run with its best or its last weights; None for its own, which `training.select`
        names. The verdicts in run.json stay those of the run's own weights.
        """
        own = self.recipe.settings.training.select
        return replace(self, other_weights=None if weights == own else weights)

    @property
    def weights(self) -> Weights:
        """Which weights are evaluated."""
        return self.other_weights or self.recipe.settings.training.select

    @property
    def label(self) -> str:
        """The folder's name; with `-last` or `-on-avenue` for other weights or data."""
        data = "" if self.data == OWN else f"on-{self.data}"
        return "-".join(part for part in (self.path.name, self.other_weights, data) if part)

    @property
    def checkpoints(self) -> Path:
        """The folder of weights and checkpoints."""
        return self.path / "checkpoints"

    def weights_file(self, weights: Weights) -> Path:
        """The file of the best or of the last weights."""
        return self.checkpoints / f"{weights}.safetensors"

    def rows(self, name: str, split: str = "test") -> pd.DataFrame:
        """The rows of a table about this run's weights and data."""
        table = self.read_table(name)
        mine = (table["weights"] == self.weights) & (table["data"] == self.data)
        return table[mine & (table["split"] == split)]


def write_recipe(run: Run) -> None:
    """Write the run's recipe into its folder, unless the file already has the same content."""
    content, file = run.recipe.text().encode(), run.path / "recipe.yaml"
    if not file.is_file() or file.read_bytes() != content:
        with run.replacing(file.name) as temporary:
            temporary.write_bytes(content)


def data_root_of(run: RunFolder, given: Path | None) -> Path | None:
    """The given data root; without one, that of the run's training."""
    recorded = run.info().data_root
    if given is not None or recorded is None:
        return given
    if (root := run.path / recorded).is_dir():
        return root
    gone = (
        f"'{run.path}' was trained with the data root '{recorded}', which does not exist any more"
    )
    warnings.warn(f"{gone}; if data are missing, give --data-root", DataWarning, stacklevel=2)
    return None


def check_same_data(run: RunFolder, fingerprint: str) -> None:
    """Refuse other training data than the run was started with: results would mix experiments."""
    _refuse_other(run, run.info().training_data, fingerprint, "training data or tokenizer")


def check_same_base(run: RunFolder, digest: str) -> None:
    """Refuse other frozen weights than the run was trained with."""
    _refuse_other(run, run.info().frozen_weights, digest, "pretrained weights of the same name")


def check_same_test(run: Run, fingerprint: str) -> None:
    """Refuse other test data than before: one curve would mix two test sets."""
    info = run.info()
    known = {OWN: info.test_data, **{name: one.test_data for name, one in info.other_tests.items()}}
    _refuse_other(run, known.get(run.data), fingerprint, "test data or tokenizer")


def _refuse_other(run: RunFolder, before: str | None, now: str, what: str) -> None:
    if before not in (None, now):
        raise UserError(
            f"'{run.path}' was started with other {what} (fingerprint {before}, now {now}); "
            "restore them, or delete the folder to train again"
        )


# ---------------------------------------------------------------- finding runs


def run_for(recipe: NamedRecipe, out: Path) -> Run:
    """The run of a recipe below the folder `out`, which is not created; the same recipe is the same
    run.
    """
    return Run(out / recipe.name / f"{recipe.settings.objective}-{recipe.identity()}", recipe)


def open_run(path: str | Path, weights: Weights | None = None) -> Run:
    """The run in an existing folder, with its own weights unless others are named."""
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"run folder '{path}' does not exist")
    if not (path / "recipe.yaml").is_file() or not (path / "run.json").is_file():
        inside = [found.parent for found in files_below(path, ["run.json"])]
        hint = (
            f"; {len(inside)} run folders are below it, for example {inside[0]}" if inside else ""
        )
        raise UserError(f"'{path}' is not a run folder (recipe.yaml or run.json is missing){hint}")
    RunFolder(path).check("recipe.yaml")
    return Run(path, recipes.load_resolved(path / "recipe.yaml")).with_weights(weights)


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """Every run folder below some folders, sorted, each once."""
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"folder '{folder}' does not exist")
        # A run has a recipe.yaml before its run.json. Hidden folders are unfinished work.
        paths = {file.parent for file in files_below(folder, ["recipe.yaml", "run.json"])}
        for path in sorted(paths):
            if not any(part.startswith(".") for part in path.relative_to(folder).parts):
                found.setdefault(path.resolve(), path)
    return [*found.values()]
