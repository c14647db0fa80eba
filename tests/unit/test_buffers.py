"""Buffers of messages: each has its own tensor, all share what pads it."""

from __future__ import annotations

import gc
import math
from pathlib import Path

import pytest
import torch

import testbed.train.buffers as module
from testbed.train.buffers import Buffers, KeptBuffers, Mappings, leaves_unwritten, most_mappings


def test_buffers_keep_what_is_their_own_and_share_the_rest() -> None:
    first, second = (buffers := Buffers(2, 300_000, 1_000, torch.float32)).take(), buffers.take()
    first[:1_000], second[:1_000] = 1.0, 2.0
    assert first[:1_000].unique().tolist() == [1.0]  # type: ignore[no-untyped-call]
    assert second[:1_000].unique().tolist() == [2.0]  # type: ignore[no-untyped-call]
    first[-1] = 7.0
    assert second[-1] == 7.0
    with pytest.raises(IndexError, match="no buffer left"):
        buffers.take()


def test_buffers_without_padding_share_nothing() -> None:
    first, second = (buffers := Buffers(2, 5_000, 5_000, torch.float64)).take(), buffers.take()
    first[:] = 1.0
    assert not second.any()


def test_memory_goes_with_the_buffers() -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:padding")

    before = mapped()
    buffers = Buffers(3, 300_000, 1_000, torch.float32)
    assert mapped() == before + 3
    del buffers
    gc.collect()
    assert mapped() == before


def test_kept_buffers_are_taken_again_and_grow() -> None:
    kept = KeptBuffers()
    before = [buffer.data_ptr() for buffer in kept.take(2, 300_000, 1_000, torch.float32)]
    fewer, more = (kept.take(count, 300_000, 1_000, torch.float32) for count in (1, 4))
    assert [buffer.data_ptr() for buffer in fewer] == before[:1]
    assert [buffer.data_ptr() for buffer in more[:2]] == before
    for number, buffer in enumerate(more):
        buffer[:1_000] = float(number)
    assert [buffer[999].item() for buffer in more] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("like", [(300_001, 1_000, torch.float32), (300_000, 1_001, torch.float32)])
def test_kept_buffers_of_another_size_are_let_go(like: tuple[int, int, torch.dtype]) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:padding")

    before, kept = mapped(), KeptBuffers()
    kept.take(3, 300_000, 1_000, torch.float32)
    assert [buffer.numel() for buffer in kept.take(1, *like)] == [like[0]]
    gc.collect()
    assert mapped() == before + 1


def test_buffers_in_order_keep_their_own_where_they_are_filled_in_turn() -> None:
    own, size = 1_000, 300_000
    first, second = (kept := KeptBuffers()).take_in_order([3, 2], size, own, torch.float32)
    for number, buffer in enumerate([*first, *second]):
        buffer[:] = float(number)
        assert buffer.data_ptr() % 64 == 0
    assert [buffer[:own].unique().tolist() for buffer in (*first, *second)] == [[0.0], [1.0], [2.0], [3.0], [4.0]]  # type: ignore[no-untyped-call]
    assert first[2].data_ptr() - first[0].data_ptr() < 2 * 4 * own + 128
    assert len({buffer.untyped_storage().data_ptr() for buffer in first}) == 3, "each is counted for itself"
    del kept  # whose memory it is


def test_kept_buffers_in_order_are_taken_again() -> None:
    kept = KeptBuffers()
    before = [
        buffer.data_ptr() for buffers in kept.take_in_order([2, 3], 5_000, 10, torch.float32) for buffer in buffers
    ]
    again = [
        buffer.data_ptr() for buffers in kept.take_in_order([2, 3], 5_000, 10, torch.float32) for buffer in buffers
    ]
    assert again == before
    assert [len(buffers) for buffers in kept.take_in_order([3, 3], 5_000, 10, torch.float32)] == [3, 3]
    assert len(kept.take(2, 5_000, 10, torch.float32)) == 2
    assert [len(buffers) for buffers in kept.take_in_order([], 5_000, 10, torch.float32)] == []


def test_none_are_none() -> None:
    with pytest.raises(IndexError):
        Buffers(0, 10, 10, torch.float32).take()


def test_a_guest_shares_so_many_pages(tmp_path: Path) -> None:
    told = tmp_path / "cpuinfo"
    told.write_text("vendor_id : User Mode Linux\nmodel name : UML\n")
    assert 1_000 < most_mappings(told) < 65_530
    assert not leaves_unwritten(told)
    assert most_mappings() == math.inf
    told.write_text("vendor_id\t: User Mode Linux\nhost\t\t: unwritten : not copied by it\nunwritten\t: not copied\n")
    assert leaves_unwritten(told)
    assert most_mappings(told) == 0, "there is nothing to share"


def test_what_is_shared_is_given_back() -> None:
    class Owner:
        pass

    mappings, owner = Mappings(10), Owner()
    assert mappings.take(owner, 2, 3) == 2
    assert mappings.take(owner, 5, 3) == 1, "as many as there is room for"
    assert mappings.take(owner, 5, 0) == 5
    del owner
    gc.collect()
    assert mappings.take(mappings, 9, 5) == 2


def test_buffers_beyond_what_may_be_shared_have_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "mappings", Mappings(600))
    buffers = Buffers(3, 300_000, 1_000, torch.float32)
    each = [buffers.take() for _ in range(3)]
    for number, buffer in enumerate(each):
        buffer[:1_000], buffer[-1] = float(number), float(number)
    assert [buffer[0].item() for buffer in each] == [0.0, 1.0, 2.0]
    assert sorted(buffer[-1].item() for buffer in each) == [1.0, 1.0, 2.0], "two share, and one does not"
