"""Buffers of messages: each has its own tensor, all share what pads it."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from testbed.train.buffers import Buffers, can_share


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


def test_none_are_none() -> None:
    with pytest.raises(IndexError):
        Buffers(0, 10, 10, torch.float32).take()


def test_a_guest_shares_nothing(tmp_path: Path) -> None:
    told = tmp_path / "cpuinfo"
    told.write_text("vendor_id : User Mode Linux\nmodel name : UML\n")
    assert not can_share(told)
    assert can_share()
