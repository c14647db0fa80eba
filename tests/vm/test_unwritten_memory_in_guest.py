"""What nobody has written is sent and received without being copied: whatever is around it, it arrives as it was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from one_boot import MARKS, Asked, Measured
from probes import asked_of_a_worker, told_by_a_worker

from testbed.vm import kernel
from testbed.vm.kernel_changes import UNWRITTEN, patches_of

pytestmark = MARKS

CASES, PAGES = 60, 120
LARGE_BYTES = 2**26

PROBE = f"""

def told():
    global told
    told = lambda: None
    import ctypes, json, mmap, random, select, socket
    libc = ctypes.CDLL(None)

    def memory(pages):
        return mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def resident(mapped):
        pages = (ctypes.c_ubyte * (len(mapped) // 4096))()
        begin = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        assert libc.mincore(ctypes.c_void_p(begin), ctypes.c_size_t(len(mapped)), pages) == 0
        return sum(page & 1 for page in pages)

    def part_written(draw, pages, share):  # with what is in it, which is not looked at
        mapped, content = memory(pages), bytearray(pages * 4096)
        for page in range(pages):
            if draw.random() < share:
                begin = page * 4096 + draw.randrange(3796)
                mapped[begin : begin + 300] = content[begin : begin + 300] = draw.randbytes(300)
            elif draw.random() < 0.1:
                mapped[page * 4096]  # read: the page that is zero for everybody
        return mapped, content

    listening = socket.create_server(("127.0.0.1", 0))
    sending = socket.create_connection(listening.getsockname())
    taking = listening.accept()[0]
    sending.setblocking(False)
    taking.setblocking(False)

    def carried(draw, source, target, begin, size, at):
        sent = taken = 0
        while taken < size:
            readable, writable, _ = select.select([taking], [sending] if sent < size else [], [], 10)
            assert readable or writable
            if writable:
                step = min(size - sent, draw.choice([1, 700, 4096, 5000, 70_000, size]))
                cut = draw.randrange(step + 1)
                views = [memoryview(source)[begin + sent : begin + sent + cut], b""]
                sent += sending.sendmsg([*views, memoryview(source)[begin + sent + cut : begin + sent + step]])
            if readable:
                step = min(size - taken, draw.choice([1, 900, 4096, 6000, 65_000, size]))
                taken += taking.recv_into(memoryview(target)[at + taken : at + taken + step])

    wrong = []
    for case in range({CASES}):
        draw = random.Random(case)
        pages = draw.randrange(2, {PAGES})
        source, sent = part_written(draw, pages, draw.choice([0, 0.05, 0.5, 1]))
        target, expected = part_written(draw, pages, draw.choice([0, 0.05, 0.5, 1]))
        begin, at = draw.randrange(4096), draw.randrange(4096)
        size = draw.randrange(1, pages * 4096 - 4096)
        expected[at : at + size] = sent[begin : begin + size]
        carried(draw, source, target, begin, size, at)
        if target[:] != bytes(expected) or source[:] != bytes(sent):
            wrong.append(case)
    source, target = memory({LARGE_BYTES} // 4096), memory({LARGE_BYTES} // 4096)
    carried(random.Random(1), source, target, 0, {LARGE_BYTES}, 0)
    found = {{"wrong": wrong, "resident": [resident(source), resident(target)]}}
    target[-1] = 7
    found["seen"] = resident(target)
    found["zero"] = not any(target[:-1])
    print("CARRIED " + json.dumps(found), flush=True)
"""


def asked(place: Path) -> dict[str, Asked]:
    return {"unwritten": asked_of_a_worker(place, PROBE)}


@pytest.fixture
def found(measured: Mapping[str, Measured]) -> dict[str, Any]:
    """What a worker says of memory that it has sent to itself."""
    return told_by_a_worker(measured["unwritten"], "CARRIED")


def test_written_and_unwritten_memory_arrives_as_it_was(found: dict[str, Any]) -> None:
    assert found["wrong"] == []
    assert found["zero"]


def test_unwritten_memory_is_not_copied(found: dict[str, Any], time_travel_kernel: kernel.Kernel) -> None:
    if UNWRITTEN not in patches_of(time_travel_kernel.source_version):
        pytest.skip(f"Linux {time_travel_kernel.series} has no patches")
    assert found["resident"] == [0, 0]
    assert found["seen"] > 0, "memory that is written is seen"
