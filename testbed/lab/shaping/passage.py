"""What a passage through the relay takes on this machine beyond the delay that is asked for.

The relay is a process, which is woken for a frame, reads it, and writes it: on a processor that is slow to enter the
kernel this is 0.1 ms, for each direction of a link, though it does not sleep while a frame is nearly due. It is
measured with a relay that carries nothing else, between two TAPs of a namespace of their own: so the links themselves
are held against what was asked without a share in it.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time

from testbed.errors import RunFailed
from testbed.lab.echoes import SO_TIMESTAMPNS, TIMESPEC_BYTES, arrival_ns
from testbed.lab.namespaces import scratch_network
from testbed.lab.netlink import Netlink
from testbed.lab.shaping.relay import RelayProcess, open_tap

MOST_S = 0.2e-3
"""Of a machine that takes longer, the rest is for the link gate to find."""

_FRAMES, _PAUSE_S, _PATIENCE_S = 25, 1e-3, 0.25
_DELAY_S, _RATE_BPS = 1e-3, 100e9
_EXPERIMENTAL = 0x88B5
"""The EtherType that IEEE 802 leaves to whoever experiments."""

_HEADER, _STAMP = struct.Struct("!6s6sH"), struct.Struct("=q")
_ADDRESSES = b"\xff" * 6, b"\2" + b"\0" * 5
_FRAME_BYTES = 60


def added_s() -> float:
    """Seconds that a frame takes longer from TAP to TAP than its delay: the median of some, at most `MOST_S`.

    Raises RunFailed where fewer than half of them come through, MachineLacks without TAPs.
    """
    return min(MOST_S, max(0.0, passage_s(_DELAY_S, early_s=0.0) - _DELAY_S))


def passage_s(delay_s: float, *, early_s: float) -> float:
    """Seconds from TAP to TAP, of a relay that lets go so much earlier. Raises as `added_s`."""
    with scratch_network():
        taps = [open_tap(name) for name in ("probe0", "probe1")]
        try:
            with Netlink(None, "scratch namespace") as netlink:
                for name in ("probe0", "probe1"):
                    netlink.ask("link", "set", index=netlink.index(name), state="up")
            one = {"delay_s": delay_s, "early_s": early_s, "rate_bps": _RATE_BPS, "queue_bytes": 1e6, "seed": 1}
            relay = RelayProcess(taps, [{"source": taps[here], "sink": taps[1 - here], **one} for here in (0, 1)])
            try:
                relay.stay_awake()
                with _at("probe0") as sender, _at("probe1") as receiver:
                    return _median_s(sender, receiver)
            finally:
                relay.close()
        finally:
            for tap in taps:
                os.close(tap)


def _at(interface: str) -> socket.socket:
    own = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EXPERIMENTAL))
    own.bind((interface, _EXPERIMENTAL))
    own.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return own


def _median_s(sender: socket.socket, receiver: socket.socket) -> float:
    header, found = _HEADER.pack(*_ADDRESSES, _EXPERIMENTAL), list[float]()
    for _ in range(_FRAMES):
        sender.send((header + _STAMP.pack(time.monotonic_ns())).ljust(_FRAME_BYTES, b"\0"))
        if select.select([receiver], [], [], _PATIENCE_S)[0]:
            frame, control, _, _ = receiver.recvmsg(_FRAME_BYTES, socket.CMSG_SPACE(TIMESPEC_BYTES))
            found.append((arrival_ns(control) - _STAMP.unpack_from(frame, _HEADER.size)[0]) / 1e9)
        time.sleep(_PAUSE_S)
    if len(found) < _FRAMES // 2:
        raise RunFailed(f"a relay of its own carried {len(found)} of {_FRAMES} frames")
    return sorted(found)[len(found) // 2]
