from __future__ import annotations

import pytest

from cudt.config import plugins
from cudt.utils.errors import UserError


@pytest.mark.parametrize(("kind", "name"), [("model", "unrolled"), ("task", "reviews")])
def test_a_name_is_the_name_of_the_file_that_implements_it(kind, name):
    assert name in plugins.names(kind)
    module = plugins.load(kind, name)
    assert module.__name__ == f"cudt.{kind}s.{name}"
    assert callable(module.build)


#: What nobody but the user can know.
REQUIRED = {
    "causal": {"pretrained"},
    "encoder": {"pretrained"},
    "stored": {"folder", "kind"},
    "vit": {"pretrained"},
    "folder": {"train", "test"},
    "text": {"train", "test", "text", "label"},
}


@pytest.mark.parametrize("kind", ["model", "task"])
def test_every_file_has_a_config_with_defaults_where_possible(kind):
    for name in plugins.names(kind):
        module = plugins.load(kind, name)
        assert callable(module.build)
        required = {key for key, field in plugins.section(kind, name).model_fields.items() if field.is_required()}
        assert required == {"name", *REQUIRED.get(name, ())}, name


def test_a_dotted_name_is_a_module_outside_of_cudt(tmp_path, monkeypatch):
    (tmp_path / "their_model.py").write_text("def build(): ...\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "model.py").write_text("def build(): ...\n")
    (tmp_path / "package" / "empty.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert plugins.load("model", "package.model").__file__ == str(
        tmp_path / "package" / "model.py"
    )
    with pytest.raises(
        UserError, match=r"model 'package\.empty': .*empty\.py does not define `build`"
    ):
        plugins.load("model", "package.empty")
    with pytest.raises(
        UserError,
        match=r"no Python module 'package\.models'; install its package or set PYTHONPATH",
    ):
        plugins.load("model", "package.models")


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("model", "unroled", r"^unknown model 'unroled'; did you mean 'unrolled'\? .*\bunrolled\b"),
        ("task", "review", r"^unknown task 'review'; did you mean 'reviews'\? .*\breviews\b"),
        ("task", "zzz", r"^unknown task 'zzz'; .*\breviews\b"),
        ("model", "__init__", r"^unknown model '__init__'; .*\bunrolled\b"),
        ("model", "../cli", r"^no Python module '../cli'"),
    ],
)
def test_an_unknown_name_is_reported_with_the_nearest_and_all_known(kind, name, message):
    with pytest.raises(UserError, match=message):
        plugins.load(kind, name)
