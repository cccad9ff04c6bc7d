from __future__ import annotations

import pytest

from cudt import registry
from cudt.errors import UserError


@pytest.mark.parametrize(("kind", "name"), [("model", "unrolled"), ("task", "reviews")])
def test_a_name_stands_for_the_file_that_implements_it(kind, name):
    assert name in registry.names(kind)
    module = registry.load(kind, name)
    assert module.__name__ == f"cudt.{kind}s.{name}"
    assert callable(module.build)


#: What nobody but the user can know.
REQUIRED = {
    "causal": {"pretrained"},
    "encoder": {"pretrained"},
    "vit": {"pretrained"},
    "folder": {"train", "test"},
    "text": {"train", "test", "text", "label"},
}


@pytest.mark.parametrize("kind", ["model", "task"])
def test_every_file_has_a_config_with_defaults_for_all_that_can_have_one(kind):
    for name in registry.names(kind):
        module = registry.load(kind, name)
        assert callable(module.build)
        required = {key for key, field in module.Config.model_fields.items() if field.is_required()}
        assert required == {"name", *REQUIRED.get(name, ())}, name


def test_listing_imports_nothing_and_leaves_out_shared_helpers(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    for name in ("works", "broken", "_shared", "__init__"):
        (tmp_path / "models" / f"{name}.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.setattr(registry, "__file__", str(tmp_path / "registry.py"))
    assert registry.names("model") == ["broken", "works"]


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("model", "unroled", r"^model\.name = 'unroled': unknown model; did you mean 'unrolled'\? .*\bunrolled\b"),
        ("task", "review", r"^task\.name = 'review': unknown task; did you mean 'reviews'\? .*\breviews\b"),
        ("task", "zzz", r"^task\.name = 'zzz': unknown task[.;:] .*\breviews\b"),
        ("model", "__init__", r"^model\.name = '__init__': unknown model[.;:] .*\bunrolled\b"),
        ("model", "../cli", r"^model\.name = '../cli': unknown model[.;:] .*\bunrolled\b"),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest_and_all_known(kind, name, message):
    with pytest.raises(UserError, match=message):
        registry.load(kind, name)
