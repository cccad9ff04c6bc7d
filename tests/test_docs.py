"""The documentation: every key and command is on a page, examples are files that exist, and the
site builds."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer

import cudt
from cudt.cli.main import app
from cudt.config import describe as schema
from cudt.config import plugins, recipe, yaml

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """scripts/reference.py, which is no package."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference"] = module
    spec.loader.exec_module(module)
    return module


def rendered(reference: ModuleType, page: str) -> str:
    return reference.on_page_markdown((DOCS / page).read_text(encoding="utf-8"))


def test_every_key_of_a_recipe_is_on_the_page_with_its_meaning(reference):
    page = rendered(reference, "reference/recipe.md")
    keys = schema.describe_recipe()
    for kind in ("task", "model"):
        for name in plugins.names(kind):
            assert f"### `{kind}: {name}`" in page
            keys += schema.describe_plugin(kind, name)
    assert len(keys) > 100
    for key in keys:
        assert f"| `{key.path}` |" in page
        assert key.meaning.replace("|", "\\|") in page


def test_every_command_and_option_is_on_the_page(reference):
    page = rendered(reference, "reference/cli.md")
    found = list(reference.walk(("cudt",), typer.main.get_command(app)))
    assert {"train", "eval-ood", "report", "recipes"} <= {names[-1] for names, _ in found}
    sections = dict(re.findall(r"^## `(.*?)`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    for names, command in found:
        section = sections[" ".join(names)]
        options = [
            option
            for one in command.params
            if not one.hidden
            for option in one.opts
            if option[0] == "-"
        ]
        assert all(f"`{option}`" in section for option in options if option != "--help")


def test_every_table_of_a_run_and_key_of_run_json_is_on_the_page(reference):
    from cudt.runs.info import RunInfo

    page = rendered(reference, "reference/run-folder.md")
    for name, columns in {
        "ood.csv": ["gamma", "value"],
        "examples.parquet": ["id", "score_1"],
    }.items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` | `"))
        assert all(f"`{column}`" in row for column in columns)
    assert all(f"| `{key}` |" in page for key in RunInfo.model_fields)


def test_every_kind_of_plug_in_has_a_contract_and_an_example(reference):
    page = rendered(reference, "reference/plug-ins.md")
    guide = rendered(reference, "guides/extend.md")
    titles = {
        "model": "A model",
        "task": "A task",
        "noise": "A kind of noise",
        "objective": "An objective",
    }
    titles |= {"dual optimizer": "A dual optimiser", "figure": "A figure"}
    assert set(titles) == set(plugins.BUILT_IN)
    for kind, title in titles.items():
        section = guide.partition(f"## {title}\n")[2].partition("\n## ")[0]
        assert plugins.DEFINES[kind] in section
    assert "`visit_layers(signal, batch, visit)` | yes |" in page
    assert "`save_pretrained(folder)` |  |" in page


def test_every_function_of_the_python_api_is_on_the_page(reference):
    page = rendered(reference, "guides/python.md")
    assert all(f"`{name}`" in page or f"cudt.{name}" in page for name in cudt.__all__)
    assert "cudt.load_recipe(source: " in page


def test_nothing_is_left_of_a_marker(reference):
    for page in PAGES:
        text = reference.on_page_markdown(page.read_text(encoding="utf-8"))
        assert "<!-- generated:" not in text
        assert "<!-- file:" not in text
        assert "<!-- diff:" not in text


def test_the_readme_is_short_and_its_links_lead_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 130
    for link in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (ROOT / link).exists(), link


def test_the_readmes_recipe_is_valid():
    (block,) = re.findall(
        r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    settings = recipe.validate(yaml.parse_mapping(block, "README.md"), "README.md")
    assert settings.model.name == "encoder"


def test_the_site_builds_without_a_broken_link(tmp_path):
    pytest.importorskip("material")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path),
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "descent.dual.learning_rate" in (tmp_path / "reference" / "recipe.html").read_text(
        encoding="utf-8"
    )
    # Links lead elsewhere; nothing else is fetched: no fonts, styles, scripts or pictures of other
    # servers.
    for page in tmp_path.rglob("*.html"):
        assert not re.findall(
            r"<(?!a )[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>", page.read_text(encoding="utf-8")
        )
    for style in tmp_path.rglob("*.css"):
        assert not re.findall(
            r"(?:@import|url\()\W*(?:https?:)?//", style.read_text(encoding="utf-8")
        )
