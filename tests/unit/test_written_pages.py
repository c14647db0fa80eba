"""What a forked process has written of the memory that it shared, and copies of it for the next ones."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest

from testbed.train import written_pages
from testbed.train.written_pages import NO_PAGES, Pages, copy_now, to_copy, written

PAGE = mmap.PAGESIZE
COUNT = 64


@pytest.fixture(autouse=True)
def in_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_pages, "in_guest", lambda: True)


@pytest.fixture
def shared() -> Iterator[tuple[mmap.mmap, Pages]]:
    """Memory that this process has written, and the numbers of its pages."""
    with mmap.mmap(-1, COUNT * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory.write(b"\1" * len(memory))
        array = np.frombuffer(memory, np.uint8)
        first = array.ctypes.data // PAGE
        del array
        yield memory, np.arange(first, first + COUNT, dtype=np.uint64)


def in_child(body: Callable[[], Any]) -> Any:
    ours, theirs = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        try:
            theirs.send(body())
        finally:
            os._exit(0)
    assert ours.poll(60)
    found = ours.recv()
    os.waitpid(pid, 0)
    return found


def test_what_a_child_has_written_is_what_it_has_alone(shared: tuple[mmap.mmap, Pages]) -> None:
    memory, pages = shared

    def child() -> Pages:
        for number in (3, 4, 9):
            memory[number * PAGE] = 2
        mine: Pages = np.intersect1d(written(), pages) - pages[0]
        return mine

    assert in_child(child).tolist() == [3, 4, 9]


def test_pages_become_ranges(shared: tuple[mmap.mmap, Pages]) -> None:
    _, pages = shared
    first = int(pages[0])
    asked = pages[[3, 4, 9, COUNT - 1]]
    nowhere = np.array([2, 3], np.uint64)  # below what a process may map
    assert to_copy(np.concatenate([nowhere, asked])).tolist() == [
        [(first + 3) * PAGE, 2 * PAGE],
        [(first + 9) * PAGE, PAGE],
        [(first + COUNT - 1) * PAGE, PAGE],
    ]
    assert to_copy(nowhere).shape == to_copy(NO_PAGES).shape == (0, 2)


def test_a_child_has_copies_without_writing(shared: tuple[mmap.mmap, Pages], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are more ranges than one call takes."""
    memory, pages = shared
    monkeypatch.setattr(written_pages, "_MOST_RANGES", 3)
    every_other = pages[::2]

    def child() -> tuple[Pages, bytes] | str:
        try:
            copy_now(to_copy(every_other))
        except OSError as error:
            return str(error.errno)
        return np.intersect1d(written(), pages), memory[:]

    found = in_child(child)
    if found == str(errno.EINVAL):
        pytest.skip("this kernel takes no such advice for a process of one's own by its descriptor (Linux < 6.14)")
    copied, content = found
    assert copied.tolist() == every_other.tolist()
    assert content == b"\1" * len(memory)


def test_what_cannot_be_copied_is_an_error() -> None:
    with pytest.raises(OSError, match="process_madvise"):
        copy_now(np.array([[PAGE, PAGE]], np.uint64))


def test_no_page_is_told_outside_a_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_pages, "in_guest", lambda: False)
    assert len(written()) == 0
    copy_now(to_copy(written()))
