"""The kernel's recipe: edits apply where their text stands once, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from processes import command_line, descendants, wait_until, wait_until_gone

from testbed.errors import MachineLacks, RunFailed
from testbed.progress import Reporter
from testbed.vm import kernel


def source_tree(root: Path) -> Path:
    for edit in kernel.EDITS:
        path = root / edit.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"before\n{edit.before}after\n")
    return root


def test_every_edit_is_made(tmp_path: Path) -> None:
    kernel.apply_edits(source_tree(tmp_path))
    for edit in kernel.EDITS:
        assert (tmp_path / edit.file).read_text() == f"before\n{edit.after}after\n"


@pytest.mark.parametrize("times", [0, 2])
def test_an_edit_whose_text_is_not_there_once_is_refused(tmp_path: Path, times: int) -> None:
    tree = source_tree(tmp_path)
    edit = kernel.EDITS[-1]
    (tree / edit.file).write_text(edit.before * times)
    with pytest.raises(RunFailed, match=rf"{edit.file}.*stands there {times} times"):
        kernel.apply_edits(tree)


def test_the_key_follows_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    before = kernel.recipe_hash()
    monkeypatch.setattr(kernel, "EDITS", kernel.EDITS[:-1])
    assert kernel.recipe_hash() != before


def test_without_source_the_command_that_adds_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernel, "SOURCE", tmp_path / "nothing.tar.xz")
    with pytest.raises(MachineLacks, match=r"apt-get install .*linux-source"):
        kernel.build(Reporter(quiet=True))
    with pytest.raises(MachineLacks, match="testbed kernel build"):
        kernel.require()


def test_a_kernel_that_is_there_is_not_built_again(time_travel_kernel: kernel.Kernel) -> None:
    if not kernel.SOURCE.is_file():
        pytest.skip(f"{kernel.SOURCE_PACKAGE} is not installed")
    built, now = kernel.build(Reporter(quiet=True))
    assert built.path.is_file()
    assert not now or built.source_version != time_travel_kernel.source_version


def sleepers(pid: int) -> list[int]:
    return [child for child in descendants(pid) if command_line(child).startswith("sleep ")]


def test_kill_9_of_a_build_ends_its_compilers(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("all: one two\none two:\n\t@sleep 300\n\t@true\n")
    code = "from pathlib import Path; from testbed.vm import kernel; kernel._run(['make', '-j2'], Path.cwd(), None)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path) as build:
        try:
            wait_until(
                lambda: [*map(command_line, descendants(build.pid))].count("sleep 300 ") == 2, "make does nothing"
            )
            processes = descendants(build.pid)
        finally:
            build.kill()
    wait_until_gone(processes)


def test_what_a_killed_build_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "building-abc" / "tree"
    left.mkdir(parents=True)
    (tmp_path / "6.12-built").mkdir()
    with kernel._locked(tmp_path):
        assert {path.name for path in tmp_path.iterdir()} == {"lock", "6.12-built"}


def test_a_second_build_waits_for_the_first_but_not_for_ever(tmp_path: Path) -> None:
    with kernel._locked(tmp_path), pytest.raises(RunFailed, match="another build"), kernel._locked(tmp_path, 0.3):
        pass
    with kernel._locked(tmp_path, 0.0):
        pass
