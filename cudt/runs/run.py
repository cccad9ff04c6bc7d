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
and renamed. run.json has the SHA-256 of every finished file: of both versions while one replaces
the other, so that a reader accepts it at any moment.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from cudt.config import recipe as recipes
from cudt.config.recipe import NamedRecipe
from cudt.config.schema import Weights
from cudt.runs.info import FinishedInfo, RunInfo
from cudt.utils import processes
from cudt.utils.errors import DamagedFileError, UserError
from cudt.utils.files import delete, digest_of, replacing, write_text

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
#: What other commands than `cudt train` write.
_EVALUATED = ("ood.csv", EXAMPLES, "extra/")


@dataclass(frozen=True)
class RunFolder:
    """The files of a run, which can be read without the plug-ins that its recipe names."""

    path: Path

    # ---------------------------------------------------------------- run.json

    def info(self) -> RunInfo:
        """run.json as it is now; all defaults if it does not exist yet."""
        return RunInfo.model_validate(self._values())

    def finished_info(self) -> FinishedInfo:
        """run.json of a finished run; a UserError for a run that is not finished."""
        if (status := self.info().status) != "finished":
            raise UserError(
                f"'{self.path}' is {status or 'not started'}, not finished; "
                "run `cudt train` with the same recipe and settings to resume it"
            )
        return FinishedInfo.model_validate(self._values())

    def update_info(self, changes: RunInfo) -> None:
        """Replace in run.json the keys that `changes` sets."""
        before = self._values()
        values = {**before, **changes.model_dump(exclude_unset=True)}
        if values != before:
            sealed = {**values, "sha256": _digest(values)}
            text = json.dumps(sealed, indent=2, ensure_ascii=False)
            write_text(self.path / "run.json", f"{text}\n")

    def _values(self) -> dict[str, Any]:
        """run.json without the SHA-256 of itself; empty if there is none."""
        try:
            values: dict[str, Any] = json.loads((self.path / "run.json").read_bytes())
            if values.pop("sha256", None) != _digest(values):
                raise ValueError("its content is not what was written")
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError, TypeError) as error:
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
            new, files = digest_of(temporary), self.info().files
            self.update_info(RunInfo(files={**files, name: [new, *files.get(name, [None])]}))
        self.update_info(RunInfo(files={**files, name: [new]}))

    def delete(self, *names: str) -> None:
        """Delete files, and their SHA-256."""
        files = {name: one for name, one in self.info().files.items() if name not in names}
        self.update_info(RunInfo(files=files))
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def check(self, name: str) -> None:
        """Refuse a file that is not as it was written, with a DamagedFileError."""
        for _ in range(3):  # A writer may replace the file after its SHA-256 was read.
            accepted, file = self.info().files.get(name), self.path / name
            now = digest_of(file) if file.is_file() else None
            if accepted is None or now in accepted:
                return
            if now is None and name.startswith(_EVALUATED):
                return  # the user has deleted it; its command writes it again
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
        return DamagedFileError(f"{self.path / name}: damaged ({reason}); restore it, or {again}")

    # ---------------------------------------------------------------- tables

    def read_table(self, name: str) -> pd.DataFrame:
        """A table as a DataFrame: "ood", "layers" or "history"; without rows if it does not exist.

        A DamagedFileError if it is not as it was written.
        """
        import pandas as pd

        types = TABLES[name]
        try:
            content = self.read(f"{name}.csv")
            # history.csv may grow while it is read: its last line may be incomplete.
            content = content[: content.rfind(b"\n") + 1]
            # As texts first: some versions of pandas lose the last digit of a number.
            table = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False)
            return table[[*types]].astype(types)
        except FileNotFoundError:
            return pd.DataFrame({column: pd.Series(dtype=one) for column, one in types.items()})

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

    def write_examples(self, rows: pd.DataFrame) -> None:
        """Write examples.parquet, replacing it."""
        with self.replacing(EXAMPLES) as temporary:
            rows.to_parquet(temporary, index=False, compression="zstd")

    # ---------------------------------------------------------------- one writer at a time

    @contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[None]:
        """Keep other commands from writing into the folder, which is created. Of processes that
        work together, the main one holds the lock for all.

        If another command holds it, wait for it or raise a UserError.
        """
        if not processes.is_main_process():
            yield
            return
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.path / LOCK_FILE, timeout=-1 if wait else 0.2):
                for left_by_killed_writer in [*self.path.rglob(".*.tmp")]:
                    delete(left_by_killed_writer)
                yield
        except Timeout:
            raise UserError(
                f"{self.path}: another process is using this run; wait for it to end, or stop it"
            ) from None


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


def check_same(run: RunFolder, what: str, before: str | None, now: str) -> None:
    """Refuse other data or frozen weights than the run was started with, by their fingerprints."""
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
    if not (path / "recipe.yaml").is_file() or not (path / "run.json").is_file():
        inside = f"; name the runs in it: {path}/*" if [*path.glob("*/run.json")] else ""
        raise UserError(f"'{path}' is not a run folder: no recipe.yaml and run.json{inside}")
    RunFolder(path).check("recipe.yaml")
    return Run(path, recipes.load(path / "recipe.yaml")).with_weights(weights)


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """Every run folder below some folders, each once; hidden folders are unfinished work."""
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"folder '{folder}' does not exist")
        for path in sorted(file.parent for file in folder.rglob("recipe.yaml")):
            if not any(part.startswith(".") for part in path.relative_to(folder).parts):
                found.setdefault(path.resolve(), path)
    return [*found.values()]
