"""Imports in a guest: the same modules with fewer calls of the kernel, and afterwards everything as it was."""

from __future__ import annotations

import _imp
import importlib
import inspect
import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from testbed.vm.quick_imports import quick_imports

LONGER = 2**20 + 7


def touched() -> list[object]:
    bootstrap = vars(importlib)["_bootstrap"]
    return [
        _imp.acquire_lock,
        _imp.release_lock,
        SourceFileLoader.get_data,
        inspect.getmodule,
        bootstrap._ModuleLock,
    ]


def test_modules_that_need_each_other_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "quick_one.py").write_text("import quick_other\nhere = 1\n")
    (tmp_path / "quick_other.py").write_text("import quick_one\nthere = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    with quick_imports():
        one = importlib.import_module("quick_one")
    assert (one.here, one.quick_other.there) == (1, 2)
    for name in ("quick_one", "quick_other"):
        del sys.modules[name]


def test_everything_is_as_it_was(tmp_path: Path) -> None:
    before = touched()
    meanwhile: list[object] = []

    def fails() -> None:
        with quick_imports():
            meanwhile.extend(touched())
            importlib.import_module("no_such_module_at_all")

    with pytest.raises(ModuleNotFoundError):
        fails()
    assert all(now is not was for now, was in zip(meanwhile, before, strict=True))
    assert touched() == before
    assert "get_data" not in vars(SourceFileLoader)


@pytest.mark.parametrize("size", [0, 5, 2**20, LONGER])
def test_a_file_is_read_to_its_end(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    with quick_imports():
        assert SourceFileLoader("file", str(path)).get_data(str(path)) == path.read_bytes()


def test_a_frames_module_is_the_one_that_inspect_finds() -> None:
    frame, expected = inspect.currentframe(), inspect.getmodule(inspect.currentframe())
    with quick_imports():
        assert inspect.getmodule(frame) is expected is sys.modules[__name__]
        assert inspect.getmodule(Path) is sys.modules[Path.__module__]
