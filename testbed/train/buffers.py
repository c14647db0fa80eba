"""Buffers of messages. What pads a tensor to the size of its message is one piece of memory for all of them.

A workload's messages are larger than the tensors of its small model. The padding travels like data, but if every buffer
had its own, copying it in and out of the kernel would push all else out of the processor's caches: on a machine that
plays every datacenter at once that took half of a message's extra time. Nobody reads the padding.
In User-Mode Linux only so much is shared (`Mappings`): the rest has all of its memory for itself. Where messages come
in a known order, the padding of each lies where the next ones will: that takes no mappings. Our kernel copies nothing
that nobody has written (testbed/vm/patches/7.2/unwritten-memory.patch): there padding is left alone.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import re
import weakref
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch

_FIXED = 0x10  # MAP_FIXED, which the mmap module does not name
_NO_RESERVE = 0x4000  # MAP_NORESERVE, which it does not name before Python 3.13
_IN_A_GUEST = 30_000
"""Pages; libraries and heaps are mappings too."""
_CPU_INFO = Path("/proc/cpuinfo")

_ALIGNED = 64
"""Bytes: so that what is computed with a tensor does not depend on where it lies."""

_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class Buffers:
    """Buffers of one size for one job; their memory lives as long as this object."""

    def __init__(
        self, count: int, elements: int, own_elements: int, dtype: torch.dtype, *, in_order: bool = False
    ) -> None:
        """`count` buffers of `elements` each, of which the first `own_elements` are each buffer's own.

        `in_order`: what comes into each comes behind what came into those taken before it, so its padding may lie where
        later ones are.

        Raises OSError when the machine has no memory for them.
        """
        self._next, self._count = 0, count
        self._elements, self._dtype = elements, dtype
        size, own = dtype.itemsize * elements, dtype.itemsize * own_elements
        self._stride = _up(min(own, size), _ALIGNED) if in_order else _pages(size)
        whole = max(0, count - 1) * self._stride + _pages(size)
        self._base = _map(None, whole, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        weakref.finalize(self, _libc.munmap, self._base, whole)
        if not in_order:
            self._share(_pages(own))

    def _share(self, own: int) -> None:
        """Have one piece of memory behind the first `own` bytes of every buffer."""
        shared = max(0, self._stride - own)
        sharing = mappings.take(self, self._count, shared // mmap.PAGESIZE)
        if not shared or not sharing:
            return
        padding = os.memfd_create("padding", os.MFD_CLOEXEC)
        try:
            os.ftruncate(padding, shared)
            for index in range(sharing):
                _map(self._base + index * self._stride + own, shared, mmap.MAP_SHARED | _FIXED, padding)
        finally:
            os.close(padding)  # the maps keep it

    @property
    def taken_bytes(self) -> int:
        """Of all messages that have a buffer, padding counted in each."""
        return self._next * self._elements * self._dtype.itemsize

    def take(self) -> torch.Tensor:
        """The next of the buffers, all zero, shape [elements]. Raises IndexError when all are taken."""
        if self._next == self._count:
            raise IndexError("no buffer left")
        size = self._elements * self._dtype.itemsize
        memory = (ctypes.c_char * size).from_address(self._base + self._next * self._stride)
        self._next += 1
        return torch.frombuffer(memory, dtype=self._dtype, count=self._elements)


class KeptBuffers:
    """Buffers of one size that stay where one training follows another: in User-Mode Linux, to lay out memory that is
    shared takes a process longer than to train with it."""

    def __init__(self) -> None:
        self._like: tuple[object, ...] = ()
        self._memory: list[Buffers] = []
        self._taken: list[torch.Tensor] = []

    def take(self, count: int, elements: int, own_elements: int, dtype: torch.dtype) -> list[torch.Tensor]:
        """`count` buffers, each of shape [elements], with what lies in them: those that were taken before, where they
        suit, whose use is over, and as many more as it takes. See Buffers.

        Raises OSError when the machine has no memory for them.
        """
        self._keep_if(like := (elements, own_elements, dtype))
        if (lacking := count - len(self._taken)) > 0:
            self._memory.append(more := Buffers(lacking, *like))
            self._taken += [more.take() for _ in range(lacking)]
        return self._taken[:count]

    def take_in_order(
        self, counts: Sequence[int], elements: int, own_elements: int, dtype: torch.dtype
    ) -> list[list[torch.Tensor]]:
        """The same for each of several senders, whose messages come in the order of their buffers.

        Raises OSError when the machine has no memory for them.
        """
        self._keep_if((like := (elements, own_elements, dtype)), *counts)
        if not self._memory:
            self._memory = [Buffers(count, *like, in_order=True) for count in counts]
            self._taken = [
                memory.take() for memory, count in zip(self._memory, counts, strict=True) for _ in range(count)
            ]
        taken = iter(self._taken)
        return [list(islice(taken, count)) for count in counts]

    def _keep_if(self, *like: object) -> None:
        """Let go of what there is, unless it is like that."""
        if self._like != like:
            self._taken, self._memory, self._like = [], [], like


def overlapping(count: int, elements: int, own_elements: int, dtype: torch.dtype) -> tuple[Buffers, list[torch.Tensor]]:
    """Buffers to send from, and their memory, which has to be kept as long: the padding of each is what lies behind it.

    That is the own elements of others and their padding; so many take hardly more memory than one.
    Raises OSError when the machine has no memory for them.
    """
    all_elements = max(0, count - 1) * own_elements + elements
    memory = Buffers(1, all_elements, all_elements, dtype)
    whole = memory.take()
    return memory, [whole[k * own_elements : k * own_elements + elements] for k in range(count)]


class Mappings:
    """Pages of this process that lie behind others' too.

    In User-Mode Linux every page that is not beside the one before it is a mapping of the guest's process on the host,
    which allows 65,530 of them: with large messages they were more, and ranks were killed or stood still.
    """

    def __init__(self, most: float) -> None:
        self._left = most

    def take(self, owner: object, count: int, pages: int) -> int:
        """Of so many pieces of memory of an object, each of so many pages, how many may be shared; with the object that
        is over."""
        granted = count if not pages else int(min(count, self._left // pages))
        self._left -= granted * pages
        weakref.finalize(owner, self._give_back, granted * pages)
        return granted

    def _give_back(self, pages: int) -> None:
        self._left += pages


def most_mappings(cpuinfo: Path = _CPU_INFO) -> float:
    """Pages that a process may share here; none where it is better to leave them alone."""
    if leaves_unwritten(cpuinfo):
        return 0
    return _IN_A_GUEST if "User Mode Linux" in cpuinfo.read_text(encoding="utf-8") else math.inf


def leaves_unwritten(cpuinfo: Path = _CPU_INFO) -> bool:
    """Whether the kernel sends and receives what nobody has written without copying it."""
    return re.search(r"^unwritten\s*: not copied$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE) is not None


mappings = Mappings(most_mappings())
_BEFOREHAND = _NO_RESERVE if leaves_unwritten() else mmap.MAP_POPULATE
"""What is done of memory before it is used."""


def _pages(size: int) -> int:
    return _up(size, mmap.PAGESIZE)


def _up(size: int, to: int) -> int:
    return -(-size // to) * to


def _map(address: int | None, size: int, flags: int, descriptor: int) -> int:
    found: int = _libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags | _BEFOREHAND, descriptor, 0)
    if found == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, f"no memory for messages: {os.strerror(error)}")
    return found
