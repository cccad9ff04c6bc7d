from __future__ import annotations

from cudt.config import recipe
from cudt.config.describe import describe


def test_recipes_and_searches_are_listed_with_what_they_need(call):
    code, output, _ = call("recipes")
    assert code == 0
    lines = output.splitlines()
    assert any(line.startswith("reviews-ut ") for line in lines)
    assert any(line.startswith("smoke-text-search ") for line in lines)
    headings = [line.split(" ")[0] for line in lines if line.startswith("recipes/")]
    assert {"recipes/text", "recipes/video", "recipes/smoke", "recipes/sweeps/paper"} <= {*headings}
    assert len({*headings}) == len(headings)
    assert max(map(len, lines)) <= 80


def test_show_prints_every_setting_with_value_default_and_meaning(call):
    code, output, error = call("recipes", "show", "smoke-text")
    assert (code, error) == (0, "")
    lines = output.splitlines()
    assert lines[0].startswith("smoke-text: ")
    assert "training.epochs: 3  (default 10)" in lines
    assert "training.accumulation: 1  (default)" in lines
    assert "task.name: reviews  (required)" in lines
    below = lines[lines.index("training.epochs: 3  (default 10)") + 1]
    assert below.startswith("    Passes over the training data.")
    keys = {line.split(":")[0] for line in lines}
    settings = recipe.load("smoke-text").settings
    shown = {
        doc.path
        for doc in describe(type(settings))
        if doc.path.startswith(("task.", "model.", "training."))
    }
    assert shown <= keys
    assert max(map(len, lines[1:])) <= 80


def test_show_applies_changes(call):
    code, output, _ = call("recipes", "show", "smoke-text", "--set", "training.epochs=10")
    assert code == 0
    assert "training.epochs: 10  (default)" in output.splitlines()


def test_show_refuses_unknown_names_and_searches(call):
    code, _, error = call("recipes", "show", "smoke-txt")
    assert code == 2
    assert "did you mean 'smoke-text'?" in error
    code, _, error = call("recipes", "show", "smoke-text-search")
    assert code == 2
    assert error.startswith("error: 'smoke-text-search' is a search, not a recipe; ")
    assert "`cudt sweep --search smoke-text-search --plan`" in error
