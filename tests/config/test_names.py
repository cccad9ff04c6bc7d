from __future__ import annotations

import unicodedata

import pytest

from cudt.config import recipe
from cudt.config.names import checked_name, name_problem
from cudt.utils.errors import UserError


def test_names_in_any_script_are_kept_as_they_are():
    for name in (
        "Zürich",
        unicodedata.normalize("NFD", "Zürich"),
        "हिन्दी",
        "lr=0.1 (copy)",
        "a.b+c-d_e",
        "α",
        "_1",
    ):
        assert checked_name(name, "name") == name


@pytest.mark.parametrize("name", ["=1+1", "-rf", ".a", "a/b", "a\nb", "a;b", "", "a" * 101])
def test_names_that_a_shell_or_a_file_system_acts_on_are_refused(name):
    assert name_problem(name)


def test_if_the_name_is_that_of_the_file_the_error_says_so(tmp_path):
    file = tmp_path / "a;b.yaml"
    file.write_text("base: reviews-ut\n")
    for read in (lambda: recipe.load(str(file)), lambda: recipe.read_named(file)):
        with pytest.raises(UserError) as error:
            read()
        assert str(error.value).startswith(
            f"{file}: the name of the file: expected a name of letters"
        )
        assert str(error.value).endswith(", got 'a;b'; rename the file, or set `name:` in it")
    file.write_text("base: reviews-ut\nname: a\n")
    assert recipe.load(str(file)).name == "a"
