"""Imports in a guest: the same modules with fewer calls of the kernel, and afterwards everything as it was."""

from __future__ import annotations

import _imp
import importlib
import inspect
import os
import resource
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from testbed.session.beforehand import LATER
from testbed.vm.quick_imports import quick_imports, with_room

LONGER = 2**20 + 7


def touched() -> list[object]:
    bootstrap = vars(importlib)["_bootstrap"]
    return [
        _imp.acquire_lock,
        _imp.release_lock,
        SourceFileLoader.get_data,
        inspect.getmodule,
        bootstrap._ModuleLock,
        vars(importlib)["_bootstrap_external"]._path_stat,
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


@pytest.mark.parametrize("name", ["file.py", "file.pyc"])
@pytest.mark.parametrize("size", [0, 5, 2**20, LONGER])
def test_a_file_is_read_to_its_end(tmp_path: Path, size: int, name: str) -> None:
    path, other = tmp_path / name, tmp_path / "other.py"
    path.write_bytes(os.urandom(size))
    other.write_bytes(os.urandom(size))
    loader = SourceFileLoader("file", str(path))
    with quick_imports():
        assert loader.get_data(str(path)) == path.read_bytes()
        source = loader.get_data(str(other))
        assert loader.get_data(str(path)) == path.read_bytes()
        assert source == other.read_bytes()  # which is kept, whatever is read after it


def test_a_file_is_asked_about_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "quick_package").mkdir()
    for module in ("__init__", "first", "second"):
        (tmp_path / "quick_package" / f"{module}.py").write_text("")
    asked: list[str] = []
    of_files = vars(importlib)["_bootstrap_external"]

    def noted(path: str) -> os.stat_result:
        asked.append(path)
        return Path(path).stat()

    monkeypatch.setattr(of_files, "_path_stat", noted)
    monkeypatch.syspath_prepend(tmp_path)
    with quick_imports():
        for name in ("quick_package.first", "quick_package.second"):
            importlib.import_module(name)
        for _ in range(2):
            with pytest.raises(ModuleNotFoundError, match="third"):
                importlib.import_module("quick_package.third")
        with pytest.raises(FileNotFoundError) as raised:
            of_files._path_stat(f"{tmp_path}/nowhere")
    assert raised.value.filename == f"{tmp_path}/nowhere"
    ours = [path for path in asked if path.startswith(str(tmp_path))]
    assert len(ours) == len(set(ours)) >= 4
    for name in [name for name in sys.modules if name.startswith("quick_package")]:
        del sys.modules[name]


def faults_at(depth: int, calls: int) -> int:
    """Page faults while a function calls another one so often, at a depth of Python's stack."""
    if depth:
        return faults_at(depth - 1, calls)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(calls):
        returns()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def returns() -> None:
    pass


def test_room_is_made_once_at_any_depth() -> None:
    calls, depths = 200, range(300)
    most = max(faults_at(depth, calls) for depth in depths)
    if most < calls:
        pytest.skip(f"Python {sys.version.split()[0]} does not give its stack back: {most} faults in {calls} calls")
    found: list[int] = []
    with_room(lambda: found.extend(faults_at(depth, calls) for depth in depths))
    assert max(found) < calls / 2


def test_a_frames_module_is_the_one_that_inspect_finds() -> None:
    frame, expected = inspect.currentframe(), inspect.getmodule(inspect.currentframe())
    with quick_imports():
        assert inspect.getmodule(frame) is expected is sys.modules[__name__]
        assert inspect.getmodule(Path) is sys.modules[Path.__module__]


def test_what_sessions_need_is_made_beforehand_without_pandas() -> None:
    code = (
        "import sys; from testbed.session import beforehand; beforehand.prepare(); "
        "print([name for name in ('pandas', *beforehand.LATER) if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == str(list(LATER))
