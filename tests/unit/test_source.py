"""The frozen copy of the source that guests run: what it is, and that nothing reaches it any more."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testbed import source
from testbed.errors import MachineLacks
from testbed.vm import kernel


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A frozen copy, for tests to copy and change: to compile one takes seconds."""
    return source.freeze(tmp_path_factory.mktemp("frozen"))


def copied(frozen: Path, directory: Path) -> Path:
    return shutil.copytree(frozen, directory / frozen.name)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def ask(copy: Path, code: str, directory: Path) -> str:
    """What `code` prints where `copy` is the package, wherever it is started."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(copy.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def test_a_frozen_copy_is_whole_and_the_same_every_time(frozen: Path, tmp_path: Path) -> None:
    first, second = frozen, source.freeze(tmp_path)
    assert contents(first) == contents(second)
    ours = {name for name in contents(source.PACKAGE) if "__pycache__" not in name}
    assert ours < set(contents(first))
    compiled = {name for name in contents(first) if name.endswith(".pyc")}
    assert len(compiled) == sum(name.endswith(".py") for name in ours)


def test_a_frozen_copy_knows_what_it_was_copied_from(frozen: Path, tmp_path: Path) -> None:
    copy = copied(frozen, tmp_path)
    code = "import json; from testbed import source; print(source.PACKAGE, json.dumps(source.identity()))"
    assert ask(copy, code, tmp_path).startswith(f"{copy} ")
    said = ask(copy, "from testbed import source; print(source.identity())", tmp_path)
    assert said == str(source.identity())
    (copy / "units.py").write_text("changed")
    assert ask(copy, "from testbed import source; print(source.identity())", tmp_path) == said


def test_the_identity_follows_the_files(frozen: Path, tmp_path: Path) -> None:
    copy = copied(frozen, tmp_path)
    (copy / "source.json").unlink()
    code = "from testbed import source; print(source.identity()['source'])"
    assert ask(copy, code, tmp_path) == source.identity()["source"]
    (copy / "units.py").write_text((copy / "units.py").read_text() + "\n")
    assert ask(copy, code, tmp_path) != source.identity()["source"]


def test_editing_the_package_does_not_reach_what_was_frozen(frozen: Path, tmp_path: Path) -> None:
    """The copy's byte-code is never compared with sources: not even its own."""
    copy = copied(frozen, tmp_path)
    (copy / "__init__.py").write_text("raise SystemExit('not the frozen one')")
    assert ask(copy, "import testbed; print(testbed.__version__)", tmp_path)


def test_a_guests_copy_is_kept_until_it_is_damaged_or_not_used_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a small package: it is compiled five times."""
    package = tmp_path / "small/testbed"
    package.mkdir(parents=True)
    for name in ("__init__.py", "units.py", "errors.py"):
        shutil.copy(source.PACKAGE / name, package / name)
    monkeypatch.setattr(source, "PACKAGE", package)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    other = tmp_path / "testbed/source/of-another-version"
    other.mkdir(parents=True)
    copy = source.kept("/there/testbed")
    assert copy is not None
    fresh = source.freeze(tmp_path / "fresh", guest_path="/there/testbed")
    assert contents(copy / "testbed") == contents(fresh)
    with monkeypatch.context() as without:
        without.setattr(compileall, "compile_dir", lambda *words, **options: pytest.fail("compiled again"))
        assert source.kept("/there/testbed") == copy
    os.utime(other, (time.time() - 25 * 3600,) * 2)
    (compiled,) = (copy / "testbed/__pycache__").glob("units.*.pyc")
    compiled.write_bytes(b"damaged")
    assert source.kept("/there/testbed") == copy
    assert contents(copy / "testbed") == contents(fresh)
    assert [path.name for path in other.parent.iterdir()] == [copy.name]
    elsewhere = source.kept("/elsewhere/testbed")
    assert elsewhere is not None
    assert contents(elsewhere / "testbed") != contents(fresh)


def test_where_nothing_can_be_kept_no_copy_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "testbed").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert source.kept("/there/testbed") is None


def test_a_user_without_home_keeps_no_copy_and_is_told_where_the_kernel_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Doctor and runs of such a user ended in a traceback."""

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert source.kept("/testbed") is None
    with pytest.raises(MachineLacks, match=r"no home directory.*export XDG_CACHE_HOME=DIR"):
        kernel.require()


def test_the_commit_is_of_the_repository_that_a_directory_is_in(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        named = ("-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false")
        line = ["git", *named, *words]
        return subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

    assert source.git_of(tmp_path).keys() == {"commit", "reason"}
    git("init", "--quiet")
    (tmp_path / "known").write_text("1")
    git("add", "known")
    git("commit", "--quiet", "-m", "first")
    below = tmp_path / "below"
    below.mkdir()
    (below / "unknown").write_text("what a check leaves is no change")
    assert source.git_of(below) == {"commit": git("rev-parse", "HEAD"), "modified": False}
    (tmp_path / "known").write_text("2")
    assert source.git_of(below)["modified"] is True
