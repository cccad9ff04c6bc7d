"""README and docs: their recipes and commands run, every command, key and column is on a page, the site builds."""

from __future__ import annotations

import csv
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import cudt
from cudt.cli.main import app
from cudt.config import plugins, recipe, yaml
from cudt.config.describe import describe
from cudt.config.schema import Recipe
from tests.pretrained import tiny_pretrained
from tests.texts import write_reviews

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.fixture(scope="module")
def reference() -> Any:
    """scripts/reference.py, which is no package."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "reference.py")))


@pytest.fixture(scope="module")
def page(reference) -> str:
    """docs/reference.md with its generated parts."""
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    return reference.on_page_markdown(text)


def test_the_readmes_recipe_and_its_three_commands_run(tmp_path, monkeypatch):
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    settings = yaml.parse_mapping(block, "README.md")
    assert recipe.validate(settings, "README.md").model.name == "encoder"
    (tmp_path / "data" / "reviews").mkdir(parents=True)
    write_reviews(tmp_path / "data" / "reviews")
    small = tiny_pretrained(tmp_path / "distilbert", "distilbert")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDT_DATA_ROOT", "data")
    name = settings["model"]["pretrained"]
    Path("my-texts.yaml").write_text(block.replace(name, small), encoding="utf-8")
    (commands,) = re.findall(r"```\n(cudt train.*?)```", README, re.DOTALL)
    for line in commands.splitlines():
        words = line.partition("#")[0].replace("0,1,2", "0,1").split()[1:]
        paths = [path for word in words if "*" in word for path in Path().glob(word)]
        words = [word for word in words if "*" not in word] + [str(path) for path in paths]
        more = ["--no-figures"] if words[0] == "report" else ["--device", "cpu"]
        done = CliRunner().invoke(app, [*words, *more])
        assert done.exit_code == 0, done.output
    assert len(list(Path("outputs/my-texts").glob("*/ood.csv"))) == 4
    assert Path("outputs/report/index.html").is_file()


def test_the_readme_is_short_and_its_links_lead_somewhere():
    assert len(README.splitlines()) <= 100
    for link in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / link).exists(), link


def test_the_papers_numbers_in_the_readme_are_those_of_its_tables():
    with (ROOT / "data" / "paper" / "rmse.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["gamma_train"] == "0.00"]
    for model in ("DUST", "UT"):
        (printed,) = re.findall(rf"^\| {model}, 5 layers, UCSD.*\| (\S+ / \S+) \|$", README, re.M)
        mine = {
            row["objective"]: f"{float(row['value']):.1f}"
            for row in rows
            if (row["model"], row["layers"], row["dataset"]) == (model, "5", "UCSD")
        }
        assert printed == f"{mine['constrained']} / {mine['erm']}"


def test_every_key_of_a_recipe_is_on_the_page_with_its_meaning(page):
    keys = describe(Recipe)
    for kind in ("task", "model"):
        for name in plugins.names(kind):
            assert f"### `{kind}: {name}`" in page
            found = describe(plugins.section(kind, name), kind)
            keys += [key for key in found if key.path != f"{kind}.name"]
    assert len(keys) > 100
    for key in keys:
        assert f"| `{key.path}` |" in page
        assert key.meaning.replace("|", "\\|") in page


def test_every_command_and_option_is_on_the_page(reference, page):
    found = list(reference.walk(("cudt",), typer.main.get_command(app)))
    assert {"train", "eval-ood", "report", "show"} <= {names[-1] for names, _ in found}
    sections = dict(re.findall(r"^### `(cudt.*?)`\n(.*?)(?=^##|\Z)", page, re.M | re.DOTALL))
    for names, command in found:
        options = [option for one in command.params if not one.hidden for option in one.opts]
        for option in options:
            if option.startswith("-") and option != "--help":
                assert f"`{option}`" in sections[" ".join(names)]


def test_every_public_name_and_table_is_on_the_page(page):
    assert all(f"### `{name}`" in page for name in cudt.__all__)
    for name, column in {"ood.csv": "gamma", "examples.parquet": "loss_l"}.items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert f"`{column}`" in row


def test_every_recipe_on_a_page_is_valid(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "outside"))
    found = 0
    for path in PAGES:
        for block in re.findall(r"```yaml\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
            if "task" in (settings := yaml.parse_mapping(block, path.name)):
                found += recipe.validate(settings, path.name).task.name == settings["task"]["name"]
    assert found >= 3


def test_the_site_builds_without_a_broken_link_and_fetches_nothing(tmp_path):
    pytest.importorskip("material")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    command = ["mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "descent.dual.learning_rate" in (tmp_path / "reference.html").read_text(encoding="utf-8")
    outside = r"<(?!a )[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>|(?:@import|url\()\W*(?:https?:)?//"
    for path in [*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css")]:
        assert not re.findall(outside, path.read_text(encoding="utf-8")), path
