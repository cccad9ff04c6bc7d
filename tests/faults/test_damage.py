"""Files of finished runs, sweeps and reports with cut ends and flipped bits: noticed, or without any effect."""

from __future__ import annotations

import io
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from cudt.cli import main as cli
from cudt.evaluation import evaluate, notes
from cudt.evaluation.grid import Grid
from cudt.models.layer_losses import weights_digest
from cudt.report import exhibits, manifest, sweeps
from cudt.report.collect import collect, read_run
from cudt.runs import checksums
from cudt.runs.completions import write_completions
from cudt.runs.find import open_run
from cudt.runs.run import Run
from cudt.training.checkpoint import load_weights
from cudt.utils.errors import DamagedFileError, DataWarning, UserError
from cudt.utils.progress import track
from tests.conftest import tiny_recipe, train_quietly
from tests.report.test_sweeps import write_sweep
from tests.sweep.searches import grid

_LEVELS = Grid(gammas=[0.0, 1.0], perturbations=["gaussian", "uniform"])


@dataclass(frozen=True)
class Project:
    """Finished runs with everything that commands write into their folders, a sweep, and a report's record."""

    folder: Path
    text: Run
    erm: Run
    sweep: Path
    report: Path


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("damage")
    out = folder / "out"
    text, erm = (train_quietly(tiny_recipe(objective=name), out) for name in ("constrained", "erm"))
    for run in (text, erm, text.with_weights("last")):
        evaluate.evaluate_ood(run, _LEVELS, "cpu", None, track, with_exits=run is text)
    evaluate.evaluate_validation(text, [0.0, 0.5], "cpu", None, track)
    picture = io.BytesIO()
    Image.effect_noise((32, 16), 50).save(picture, format="png")
    checksums.write_checked(text.path, "samples/gaussian-0-a.png", picture.getvalue())
    answer = {"instruction": "Say red.", "output": "red", "generator": "tiny", "dataset": "ask"}
    write_completions(text.path / "completions" / "ask-gamma0-seed0-tokens8.json", [answer] * 3)
    sweep = write_sweep(folder / "searched", arms={"constrained": grid({"seed": [0, 1, 2]})})
    report = folder / "report"
    manifest.replace(report, [report / "tables" / "a.csv"])
    return Project(folder, text, erm, sweep, report)


# ---------------------------------------------------------------- what commands make of a file


def _command(*arguments: str | Path) -> str:
    done = CliRunner().invoke(cli.app, [*map(str, arguments)], env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def _compared(project: Project) -> str:
    return _command("compare", project.text.path, project.erm.path)


def _compared_with_last(project: Project) -> str:
    return _command("compare", project.text.path, project.text.path / "last")


def _listed(project: Project) -> str:
    return _command("runs", project.folder / "out", "--csv")


def _collected(project: Project) -> str:
    found = collect([project.folder / "out"])
    return repr([found.warnings, *(vars(run) for run in found.runs)])


def _weights(project: Project) -> str:
    runs = (project.text, project.text.with_weights("last"))
    return repr([weights_digest(load_weights(run).items()) for run in runs])


def _pictures(project: Project) -> str:
    pictures = exhibits.Pictures()
    return repr([exhibits.samples([read_run(project.text.path)], pictures), pictures.note()])


def _answers(project: Project) -> str:
    return repr(exhibits.completions([read_run(project.text.path)]))


def _searched(project: Project) -> str:
    found, problems = sweeps.collect([project.sweep])
    return repr([problems, *((one.info, one.trials.to_csv(), one.best.to_csv()) for one in found)])


def _report_again(project: Project) -> str:
    """A later report, which deletes what only the earlier one has."""
    with _kept(project.report):
        (project.report / "tables").mkdir(exist_ok=True)
        (project.report / "tables" / "a.csv").touch()
        problems = manifest.replace(project.report, [project.report / "tables" / "b.csv"])
        return repr([problems, sorted(path.name for path in project.report.rglob("*"))])


@dataclass(frozen=True)
class Kind:
    """Files that the same commands read."""

    files: Callable[[Project], Path]
    pattern: str
    readers: tuple[Callable[[Project], str], ...]

    def found(self, project: Project) -> list[Path]:
        return [
            path
            for path in sorted(self.files(project).glob(self.pattern))
            if path.is_file() and not path.name.startswith(".")
        ]


#: All files, by what reads them.
KINDS = {
    "run.json": Kind(lambda made: made.text.path, "run.json", (_listed, _compared, _collected)),
    "recipe.yaml": Kind(lambda made: made.text.path, "recipe.yaml", (_listed, _compared)),
    "checksums.json": Kind(lambda made: made.text.path, "checksums.json", (_compared, _weights)),
    "tables": Kind(lambda made: made.text.path, "*.csv", (_compared, _collected)),
    "examples": Kind(lambda made: made.text.path, "*.parquet", (_compared,)),
    "last": Kind(lambda made: made.text.path / "last", "*.*", (_compared_with_last,)),
    "weights": Kind(lambda made: made.text.path / "checkpoints", "*", (_weights,)),
    "samples": Kind(lambda made: made.text.path / "samples", "*", (_pictures,)),
    "completions": Kind(lambda made: made.text.path / "completions", "*", (_answers,)),
    "sweep": Kind(lambda made: made.sweep, "[bst]*.[cj]s*", (_searched,)),
    "report": Kind(lambda made: made.report, "report.json", (_report_again,)),
}


# ---------------------------------------------------------------- damage


@contextmanager
def _kept(path: Path) -> Iterator[None]:
    """Put a file or folder back as it was."""
    if path.is_file():
        content = path.read_bytes()
        yield
        _replace(path, content)
        return
    copy = path.with_name(f"{path.name}-copy")
    shutil.copytree(path, copy)
    try:
        yield
    finally:
        shutil.rmtree(path)
        copy.rename(path)


def _replace(path: Path, content: bytes) -> None:
    """Another file of the same name: the weights of the best and of the last epoch may be one file."""
    path.unlink()
    path.write_bytes(content)


def _damages(path: Path, n_cuts: int, n_flips: int) -> Iterator[tuple[str, bytes]]:
    """Contents that a file does not have: cut off at random places, and with single bits flipped."""
    content, draw = path.read_bytes(), random.Random(path.name)
    for size in sorted({0, *(draw.randrange(len(content)) for _ in range(n_cuts - 1))}):
        yield f"{size} of {len(content)} bytes", content[:size]
    for _ in range(n_flips):
        place, bit = draw.randrange(len(content)), 1 << draw.randrange(8)
        yield f"bit {bit} of byte {place}", content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]


def _outcome(reader: Callable[[Project], str], project: Project) -> tuple[str, str]:
    """What a command printed or read, and its error or warnings; any other exception than the user's fails the test."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", DataWarning)
        try:
            return reader(project), " ".join(str(one.message) for one in warned)
        except (UserError, OSError) as error:
            return "", str(error)


def _check(project: Project, kind: Kind, n_cuts: int, n_flips: int, readers: slice = slice(None)) -> int:
    """Damage each file in turn: every command says which file it is, or makes the same of it as before."""
    before = {reader: _outcome(reader, project) for reader in kind.readers[readers]}
    assert not any(said for _, said in before.values()), before.values()
    assert kind.found(project)
    n_damages = 0
    for path in kind.found(project):
        for what, content in _damages(path, n_cuts, n_flips):
            with _kept(path):
                _replace(path, content)
                for reader in before:
                    made, said = _outcome(reader, project)
                    is_named = path.name in said or (path.name in made and "damaged" in made)
                    assert is_named or made == before[reader][0], (path, what, reader.__name__, made, said)
            n_damages += 1
    return n_damages


@pytest.mark.parametrize("name", KINDS)
def test_damage_is_named_or_has_no_effect(project: Project, name: str) -> None:
    assert _check(project, KINDS[name], n_cuts=3, n_flips=5, readers=slice(1)) >= 8


@pytest.mark.soak
@pytest.mark.parametrize("name", KINDS)
def test_much_damage(project: Project, name: str, tally: Callable[[str, int], None]) -> None:
    tally("damaged files", _check(project, KINDS[name], n_cuts=50, n_flips=200))


def _check_earlier(project: Project, n_cuts: int, n_flips: int) -> int:
    """The same without checksums: numbers may change, but there is never a traceback."""
    count = 0
    with _kept(project.text.path), _kept(project.sweep):
        for folder in (project.text.path, project.text.path / "last", project.sweep):
            (folder / checksums.FILE).unlink()
        for name in ("run.json", "recipe.yaml", "tables", "examples", "completions", "sweep", "last", "weights"):
            kind = KINDS[name]
            for path in kind.found(project):
                for _, content in _damages(path, n_cuts, n_flips):
                    with _kept(path):
                        _replace(path, content)
                        _outcome(kind.readers[0], project)
                    count += 1
    return count


def test_damage_of_an_earlier_version_is_never_a_traceback(project: Project) -> None:
    assert _check_earlier(project, n_cuts=1, n_flips=1) > 20


@pytest.mark.soak
def test_much_damage_of_an_earlier_version(project: Project, tally: Callable[[str, int], None]) -> None:
    tally("damaged files without checksums", _check_earlier(project, n_cuts=50, n_flips=100))


# ---------------------------------------------------------------- evaluating a damaged run


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("name", ["ood.csv", "constraints.csv", "layers.csv", "examples.parquet", "exits.csv"])
def test_an_evaluation_of_a_damaged_run_replaces_nothing(project: Project, name: str) -> None:
    run = project.text
    with _kept(run.path / name):
        (run.path / name).write_bytes((run.path / name).read_bytes()[:-20])
        before = _contents(run.path)
        with pytest.raises(DamagedFileError, match=name):
            evaluate.evaluate_ood(run, _LEVELS, "cpu", None, track, with_exits=True)
        assert _contents(run.path) == before


@pytest.mark.parametrize("name", ["ood.csv", "examples.parquet"])
def test_a_deleted_table_is_evaluated_again(project: Project, name: str) -> None:
    with _kept(project.erm.path):
        run, before = open_run(project.erm.path), _contents(project.erm.path)
        assert notes.left(run, _LEVELS) == []
        (run.path / name).unlink()
        with pytest.raises(UserError, match=rf"{name}: damaged \(missing\)"):
            run.check_file(name)
        assert notes.left(run, _LEVELS) == ["gaussian", "uniform"]
        evaluate.evaluate_ood(run, _LEVELS, "cpu", None, track)
        assert notes.left(run, _LEVELS) == []
        assert _contents(run.path) == before


def test_notes_claim_no_more_than_the_rows_that_are_there(project: Project) -> None:
    """A table of an earlier version that ends with a whole line has no mark of damage but its missing rows."""
    with _kept(project.erm.path):
        run, table = open_run(project.erm.path), project.erm.path / "ood.csv"
        (run.path / checksums.FILE).unlink()
        table.write_bytes(b"".join(table.read_bytes().splitlines(keepends=True)[:-6]))
        assert notes.left(run, _LEVELS) == ["uniform"]
        evaluate.evaluate_ood(run, Grid(gammas=[0.0], perturbations=["uniform"]), "cpu", None, track)
        assert run.info().evaluated["uniform"].levels == [0.0]
        assert run.info().evaluated["gaussian"].levels == [0.0, 1.0]
