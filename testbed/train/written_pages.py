"""Memory that a forked process is likely to write, copied for it in one call instead of page by page.

A forked process shares its memory with who forked it until one of them writes: each page is then a fault of its own.
In a guest (testbed.vm) a fault is a signal and two changes of process of the machine's, and a worker had 3,700 of them
before two iterations were over. Of what the process has written that trained the reference, a worker writes about half.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from testbed.train.buffers import in_guest

Pages = NDArray[np.uint64]
"""Numbers of pages, which are addresses by their size; shape (pages,), ascending."""

Ranges = NDArray[np.uint64]
"""Address and length of each, in bytes; shape (ranges, 2)."""

_PAGE = os.sysconf("SC_PAGE_SIZE")
_ENTRY = np.dtype(np.uint64)
"""Of /proc/PID/pagemap, for every page (proc_pid_pagemap(5))."""
_PRESENT, _EXCLUSIVE = 1 << 63, 1 << 56
_NR_PROCESS_MADVISE = 440
_MADV_POPULATE_WRITE = 23
_MOST_RANGES = 1024
"""In one call (UIO_MAXIOV)."""

NO_PAGES: Pages = np.array([], np.uint64)


def written() -> Pages:
    """Of private memory, the pages that the calling process alone has; none where that tells nobody anything."""
    return _having(_PRESENT | _EXCLUSIVE) if in_guest() else NO_PAGES


def to_copy(pages: Pages) -> Ranges:
    """Of `pages`, those of private memory that the calling process has."""
    if not len(pages):
        return np.empty((0, 2), np.uint64)
    there = np.intersect1d(pages, _having(_PRESENT))
    first = np.flatnonzero(np.diff(there, prepend=there[:1] - 2) != 1) if len(there) else np.array([], int)
    counts = np.diff(first, append=len(there))
    return np.stack([there[first] * _PAGE, counts.astype(np.uint64) * _PAGE], axis=1)


def copy_now(ranges: Ranges) -> None:
    """Have the calling process, which was just forked, have copies of its own of these. Raises OSError."""
    if not len(ranges):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(os.getpid())
    try:
        for at in range(0, len(ranges), _MOST_RANGES):
            some = np.ascontiguousarray(ranges[at : at + _MOST_RANGES])
            where = ctypes.c_void_p(some.ctypes.data)
            if libc.syscall(_NR_PROCESS_MADVISE, process, where, len(some), _MADV_POPULATE_WRITE, 0) < 0:
                code = ctypes.get_errno()
                raise OSError(code, f"process_madvise: {os.strerror(code)}")
    finally:
        os.close(process)


def _having(bits: int) -> Pages:
    """Pages of private memory that may be written and whose entries have these bits."""
    found = [NO_PAGES]
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            where, rights = line.split(maxsplit=2)[:2]
            if rights[1] != "w" or rights[3] != "p":
                continue
            first, end = (int(each, 16) // _PAGE for each in where.split("-"))
            pagemap.seek(first * _ENTRY.itemsize)
            entries = np.frombuffer(pagemap.read((end - first) * _ENTRY.itemsize), _ENTRY)
            found.append(first + np.flatnonzero((entries & np.uint64(bits)) == bits).astype(np.uint64))
    return np.concatenate(found)
