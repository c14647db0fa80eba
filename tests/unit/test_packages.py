"""The lock holds what is asked for and all that this needs, under every Python that is supported."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from testbed.extras import PACKAGES

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OF_A_GPU = re.compile(r"nvidia-|cuda-|triton$")
"""What torch's CUDA build brings along: not locked, since a CPU build is enough and needs none of it."""


def pins(name: str) -> dict[str, str]:
    """Package -> version, of a requirements file."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if line and line[0] not in "#-"]
    assert all(len(one.specifier) == 1 and str(one.specifier).startswith("==") for one in found), "exact pins only"
    return {canonicalize_name(one.name): str(one.specifier)[2:] for one in found}


def supported() -> dict[str, SpecifierSet]:
    """Package -> versions, of pyproject.toml."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lines = [*document["project"]["dependencies"], *document["dependency-groups"]["test"]]
    found = [*map(Requirement, lines), *(package for extra in extras().values() for package in extra)]
    return {canonicalize_name(package.name): package.specifier for package in found}


def extras() -> dict[str, list[Requirement]]:
    """What each extra in pyproject.toml brings."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {name: [*map(Requirement, lines)] for name, lines in document["project"]["optional-dependencies"].items()}


def test_the_lock_holds_what_is_asked_for() -> None:
    locked, not_locked = pins("requirements.txt"), {each.name for each in extras()["ray"]}
    for name, versions in supported().items():
        assert name in not_locked or locked[name] in versions, name


def test_every_package_has_an_oldest_and_a_newest_version() -> None:
    for name, versions in supported().items():
        assert {specifier.operator for specifier in versions} in ({"=="}, {">=", "<"}), name


def test_commands_ask_for_the_packages_that_the_extras_bring() -> None:
    assert {extra: {each.name for each in packages} for extra, packages in extras().items()} == {
        extra: set(packages) for extra, packages in PACKAGES.items()
    }


def test_who_trains_can_read_the_results() -> None:
    """The same ranges in both: `train` does not ask for testbed[report] by name."""
    assert {*map(str, extras()["report"])} < {*map(str, extras()["train"])}


@pytest.fixture
def locked() -> dict[str, str]:
    """The lock, where it is what is installed: only those packages can be asked what they need."""
    found = pins("requirements.txt")
    other = [name for name, version in found.items() if _installed(name) != version]
    if other:
        pytest.skip(f"not of the lock here: {', '.join(other)}")
    return found


def _installed(name: str) -> str | None:
    """Its version, whatever the build; None where there is none."""
    try:
        return distribution(name).version.partition("+")[0]
    except PackageNotFoundError:
        return None


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_holds_all_that_its_packages_need(python: str, locked: dict[str, str]) -> None:
    environment = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    missing = []
    for name in locked:
        for line in distribution(name).requires or ():
            needed = Requirement(line)
            key = canonicalize_name(needed.name)
            if OF_A_GPU.match(key) or not (needed.marker is None or needed.marker.evaluate(environment)):
                continue
            if key not in locked or locked[key] not in needed.specifier:
                missing.append(f"{name}: {line}")
    assert not missing


def test_every_locked_package_allows_every_python(locked: dict[str, str]) -> None:
    for name in locked:
        allowed = SpecifierSet(str(distribution(name).metadata.json.get("requires_python") or ""))
        assert all(f"{python}.2" in allowed for python in PYTHONS), name


def test_set_up_asks_for_the_pythons_that_the_package_does() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    allowed = SpecifierSet(project["requires-python"])
    assert all(f"{python}.0" in allowed for python in PYTHONS)
    found = re.search(r"\((3, \d+)\) <= sys.version_info < \((3, \d+)\)", (ROOT / "Makefile").read_text())
    assert found
    low, high = found.groups()
    assert allowed == SpecifierSet(f">={low.replace(', ', '.')},<{high.replace(', ', '.')}")


def test_mininet_finds_the_distutils_that_python_dropped() -> None:
    """With the packages that a user has: setuptools is one of them."""
    assert "setuptools" in PACKAGES["train"]
    assert import_module("mininet.node").StrictVersion
