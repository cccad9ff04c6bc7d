from __future__ import annotations

from importlib import metadata

import pytest

from cudt import __version__
from cudt.doctor import packages
from tests.doctor.conftest import bad, found, scope

#: Packages by name: their version and what they need.
Installed = dict[str, tuple[str, list[str]]]
GOOD: Installed = {
    "cudt": (__version__, ["torch<2.14,>=2.6", "pandas>=2.2", "psycopg>=3; extra == 'postgres'"]),
    "torch": ("2.13.0+cpu", []),
    "pandas": ("2.2.3", ["numpy>=1.23", "tzdata"]),
    "numpy": ("2.1.0", []),
}


@pytest.fixture
def install(monkeypatch):
    def pretend(installed: Installed, python: str = ">=3.10") -> None:
        def find(name: str) -> tuple[str, list[str]]:
            if name not in installed:
                raise metadata.PackageNotFoundError(name)
            return installed[name]

        monkeypatch.setattr(metadata, "version", lambda name: find(name)[0])
        monkeypatch.setattr(metadata, "requires", lambda name: find(name)[1])
        monkeypatch.setattr(metadata, "metadata", lambda name: {"Requires-Python": python, "Version": find(name)[0]})

    return pretend


def test_good_packages_are_counted(install):
    install(GOOD)
    assert [one.severity for one in found(packages.CHECK, scope())] == ["ok", "ok"]
    assert found(packages.CHECK, scope())[1].title == f"cudt {__version__} and the 2 packages that it needs"


def test_a_missing_and_an_old_package_are_problems_with_the_command_that_installs_them(install):
    install({"cudt": GOOD["cudt"], "torch": ("2.14.1", [])})
    torch, pandas = bad(packages.CHECK, scope())
    assert (torch.severity, pandas.severity) == ("problem", "problem")
    assert torch.title == "cudt needs torch<2.14,>=2.6: version 2.14.1 is installed"
    assert torch.advice == "`pip install 'torch<2.14,>=2.6'`"
    assert pandas.title == "cudt needs pandas>=2.2: it is not installed"


def test_what_packages_ask_of_each_other_is_a_warning(install):
    install({**GOOD, "pandas": ("2.2.0", ["numpy<2"])})
    (conflict,) = bad(packages.CHECK, scope())
    assert (conflict.severity, conflict.title) == (
        "warning",
        "pandas 2.2.0 needs numpy<2: version 2.1.0 is installed",
    )


def test_a_python_that_is_too_old_another_version_of_cudt_and_none_are_noticed(install):
    install(GOOD, python=">=3.99")
    assert "cudt needs >=3.99" in bad(packages.CHECK, scope())[0].title
    install({**GOOD, "cudt": ("0.0.1", [])})
    assert "version 0.0.1 is installed" in bad(packages.CHECK, scope())[0].title
    install({})
    assert "runs from its source folder" in bad(packages.CHECK, scope())[0].title
