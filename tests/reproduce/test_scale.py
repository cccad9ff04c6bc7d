from __future__ import annotations

import re
from pathlib import Path

import pytest

from cudt.reproduce import scale
from cudt.utils.errors import UserError
from tests.reproduce.scales import listed, scale_of, write_search

ROOT = Path(__file__).parent.parent.parent


def refused(*arguments, **changes) -> list[str]:
    with pytest.raises(UserError) as error:
        scale_of(*arguments, **changes)
    first, *more = str(error.value).splitlines()
    return [line.strip() for line in more] or [first]


# ---------------------------------------------------------------- the scales that come with cudt


@pytest.mark.parametrize("name", scale.names())
def test_a_scale_that_comes_with_cudt_is_valid_and_says_what_it_is_for(name):
    loaded = scale.load(name)
    assert (
        scale.locate(name).read_text(encoding="utf-8").splitlines()[0]
        == f"# cudt reproduce --scale {name}"
    )
    assert all(experiment.listed.reproduces.strip() for experiment in loaded.experiments)


def papers_sweeps() -> list[tuple[str, str]]:
    """Search and recipe of every row of the table in docs/guides/sweeps.md, which names some of
    them in words."""
    _, _, table = (
        (ROOT / "docs/guides/sweeps.md")
        .read_text(encoding="utf-8")
        .partition("## The paper's sweeps")
    )
    found = []
    for line in (line for line in table.splitlines() if line.startswith("| `")):
        searches, recipes = (re.findall(r"`([\w-]+)`", cell) for cell in line.split("|")[1:3])
        if "nine video recipes" in line:
            kinds = (
                ("dust", "gamma-train-dust"),
                ("ut", "gamma-train"),
                ("vit", "gamma-train-vit"),
            )
            sets = ("ucsd", "avenue", "shanghaitech")
            found += [(search, f"{name}-{model}") for name in sets for model, search in kinds]
        else:
            found += [(search, recipe) for search in searches for recipe in recipes]
    return found


def test_full_is_the_papers_sweeps_and_llama():
    experiments = [
        (one.sweep.name, one.sweep.recipe_name) for one in scale.load("full").experiments
    ]
    assert sorted(experiments) == sorted([*papers_sweeps(), ("llama", "alpaca-llama")])
    assert len(experiments) == 24


def test_smoke_has_every_search_of_full_in_small():
    in_full = {
        re.sub(r"^(gamma-train|video-search)-.*", r"\1", one.sweep.name)
        for one in scale.load("full").experiments
    }
    assert {one.sweep.name for one in scale.load("smoke").experiments} == {
        f"smoke-{name}" for name in in_full
    }


# ---------------------------------------------------------------- mistakes


def test_schema_errors_are_reported_together(tmp_path):
    wrong = listed("alpha", evaluate="bets", noise_seed=[0], hours=-1.0)
    lines = refused(tmp_path, wrong, needs_gpu="yes")
    assert lines == [
        "needs_gpu: must be a valid boolean, got 'yes'",
        "experiments.0.hours: must be greater than 0, got -1.0",
        "experiments.0.evaluate: must be 'best', 'all' or 'none', got 'bets'; did you mean 'best'?",
        "experiments.0.noise_seed: unknown key; did you mean 'noise_seeds'?",
    ]


def test_errors_of_several_experiments_are_reported_together(tmp_path):
    pair = write_search(tmp_path)
    asked = {"instructions": "mine.json", "gammas": [0.0]}
    lines = refused(
        tmp_path,
        listed("alhpa"),
        listed(pair, recipe="no-recipe"),
        listed(pair, samples=2, completions=asked),
    )
    assert lines == [
        "experiments.0: no search is called 'alhpa'; did you mean 'alpha'?",
        "experiments.1: search pair: --recipe: no recipe is called 'no-recipe'; `cudt recipes` "
        "lists all",
        "experiments.2.samples = 2: task reviews has no pictures; samples are for video tasks",
        "experiments.2.completions: model unrolled cannot generate text; use a causal model",
    ]


def test_what_is_asked_for_must_fit_the_recipe(tmp_path):
    lines = refused(
        tmp_path,
        listed("smoke-depth", exits=True, on=["avenue", "imdb", "avenu"]),
        listed("smoke-llama", exits=True),
        listed(write_search(tmp_path), exits=True),
    )
    assert lines == [
        "experiments.0.exits: task shapes has no classes; early exits are for classification",
        "experiments.0.on imdb: task shapes of the run cannot be tested on data of task imdb; "
        "name a task with the "
        "same kind of examples (video, or texts with classes)",
        "experiments.0.on: no recipe or task is called 'avenu'; did you mean 'avenue'?",
        "experiments.1.exits: task alpaca has no classes; early exits are for classification",
    ]


def test_an_experiment_that_is_listed_twice_is_refused(tmp_path):
    pair = write_search(tmp_path)
    assert refused(tmp_path, listed(pair), listed(pair, evaluate="all")) == [
        "scale mine: experiments: pair · reviews-ut is listed twice; remove one"
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smok", "no scale is called 'smok'; did you mean 'smoke'?"),
        ("zzz", "no scale is called 'zzz'; available: cpu, full, smoke"),
        ("no/such.yaml", "scale file 'no/such.yaml' does not exist"),
    ],
)
def test_an_unknown_scale_is_an_error(name, message):
    with pytest.raises(UserError, match=re.escape(message)):
        scale.load(name)
