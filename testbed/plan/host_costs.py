"""What engine and gloo cost on any machine: measured constants, each with where it comes from."""

from __future__ import annotations

from typing import Literal

from testbed.plan.framing import ETHERNET_HEADER, IP_TCP_HEADERS, PREAMBLE_BYTES
from testbed.plan.plan import HostCosts
from testbed.trace.tables import UNNOTICED_WAIT_S

HANDOVER_S = 3e-6
"""What is left of a message's time on a machine without other work: waking gloo's thread and the rank. It decides who
comes first where a plain model would hand two messages to a link at one instant. It is little on purpose: what this
machine takes is measured before a run (session/message_costs.py)."""

NOTICE_BYTES = PREAMBLE_BYTES + ETHERNET_HEADER + IP_TCP_HEADERS
"""Wire bytes of one of gloo's notices (of a send, of a receive): a preamble in a packet of its own."""

GLOO_BYTES = PREAMBLE_BYTES + NOTICE_BYTES
"""What gloo adds to a message on the wire: a preamble, and a notice of the send ahead of it. Measured under the virtual
clock: 162 bytes at 250 kB and 1 MB."""


SEND_S = 4e-6
"""What the call that sends a message takes on an ideal machine where no link is on the way: the kernel brings it to
the receiver within the call. It comes on top of the handover, and a rank that posts a late receive next does so later.
A link's queue only takes it in.
Found on the main job with 250 kB, 1 MB and 4 MB (`testbed calibrate --engine`) where a system call took about a
microsecond; checked on benchmarks/random_grid.py."""

SEND_S_PER_BYTE = 4.3e-12
"""And for each byte: one super-packet of 64 kB after the other is handed to the kernel. Found and checked as above."""

WAKE_S = 1e-6
"""What gloo's thread takes to answer a notice when it sleeps: of two notices that arrive within a microsecond, the one
is answered first whose thread is awake because data has just come in. Found with late receives on
benchmarks/virtual_grid.py, P = 4; checked on cells 74 to 98 of benchmarks/random_grid.py."""

STAGGER_S = 20e-6
"""Ranks of a job with replicas begin an iteration this much apart, one after the other: at one and the same instant
nothing but chance would tell whose data a shared link takes first. It is thrice what a machine takes to wake one rank
after the other."""

STAGGER_S_PER_BYTE = 70e-12
"""And for each byte that a rank sends as it begins, while nobody else wakes: a shard of 1.7 MB takes 90 us, and ranks
that were to begin meanwhile come after others."""

SHARED_STAGGER_S, SHARED_STAGGER_S_PER_BYTE = 200e-6, 1e-9
"""On a real clock, what more lies between two ranks that begin by sending over one link: there a rank may wake 0.1 to
0.2 ms late, and handing a shard of 1 MB to the kernel takes 0.3 to 1 ms while others do the same. What began 0.1 ms
later was on the link first in half of the iterations. A run in which it still is says so (judge/fidelity.py,
order_check)."""


TIE_S = 20e-6
"""What the model has within so much of each other may come the other way round: gloo's threads take some 10 us to
answer, 6 us for each rank that was woken before, and with late receives every second flow's messages are some 20 us
off."""

VIRTUAL_HANDOVER_S = 40e-9
"""The same in a guest: 28 to 50 ns, across links and inside a datacenter, of messages of 70 kB and of 1 MB
(`testbed calibrate --engine`), checked on benchmarks/messages_at_once.py. Its programs read the clock at 1 ns each, and
two of their calls fail, at 10 ns each (vm/kernel.py); nothing else there takes time."""

VIRTUAL_TIE_S = 2e-6
"""And there: messages come within 0.2 us of what the model says, on links and inside datacenters (`message_times.py
--read` on plans 110 to 115 of benchmarks/option_pairs.py); ten times that, for hundreds at one instant. Checked on
benchmarks/ranges.py."""


def measured_costs(clock: Literal["real", "virtual"]) -> HostCosts:
    """The costs above, as they are where such a clock makes time pass."""
    if clock == "virtual":
        return HostCosts(
            handover_s=VIRTUAL_HANDOVER_S,
            unnoticed_wait_s=UNNOTICED_WAIT_S,
            gloo_bytes=GLOO_BYTES,
            notice_bytes=NOTICE_BYTES,
            wake_s=0.0,
            stagger_s=STAGGER_S,
            tie_s=VIRTUAL_TIE_S,
        )
    return HostCosts(
        handover_s=HANDOVER_S,
        unnoticed_wait_s=UNNOTICED_WAIT_S,
        gloo_bytes=GLOO_BYTES,
        notice_bytes=NOTICE_BYTES,
        wake_s=WAKE_S,
        send_s=SEND_S,
        send_s_per_byte=SEND_S_PER_BYTE,
        stagger_s=STAGGER_S,
        stagger_s_per_byte=STAGGER_S_PER_BYTE,
        shared_stagger_s=SHARED_STAGGER_S,
        shared_stagger_s_per_byte=SHARED_STAGGER_S_PER_BYTE,
        tie_s=TIE_S,
    )
