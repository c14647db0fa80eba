"""The kernel's recipe: edits apply where their text stands once, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

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
