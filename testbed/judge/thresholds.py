"""Every threshold of a judgement, with its reason: the link gate's bands, fidelity, comparison. Imports nothing."""

from __future__ import annotations

# --- the link gate: is a link what was asked for? ---

RELATIVE_BAND = 0.02
"""Of the RTT, the one-way delay and the rate: what median delays and rates of one idle link differ by between
measurements on an ordinary virtual machine stays well below it."""

DELAY_BAND_S = 0.4e-3
"""Short delays may differ by this much instead: virtual CPUs that halt between packets wake late, by about as much."""

ATTEMPTS = 3
"""A link outside the bands is measured again: other work on the host can disturb a measurement."""

QUIET_LIMIT_S = 20.0
"""For so long the gate waits for a quiet machine before it measures such a link again: other people's work often ends
within seconds, and who waits longer is better served by the virtual clock."""

QUIET_STOLEN = 0.02
"""Share of the processors' time that may be stolen on a quiet machine: as much as rates may be off."""

QUIET_WAITED = 0.02
"""Share of the time that a probe, or the relay, may stand in a run queue: as much as rates may be off."""

QUIET_LATE_S = 0.2e-3
"""By so much the median sleep may end late: half of what a short delay may be off."""

# --- fidelity: was a run what it says it was? ---

MAX_OVERRUN_SHARE = 0.01
"""Share of measured actions whose real computation may not fit into the slot it stands for."""

MAX_LATE_START_S = 2e-3
MAX_LATE_START_SHARE = 0.25
"""At most this share of iterations may have a rank that was later than MAX_LATE_START_S at the common start: one late
start delays one iteration, and the median of the iterations does not move until they are half of them."""

MAX_SPREAD = 0.10
"""Interquartile range of the iteration time over its median: the same work at the same pace takes the same time."""

MAX_LOSS_DIFFERENCE = 1e-5
"""Relative difference between a case's loss and that of one process without a pipeline, in any iteration: they compute
the same thing, in another order of sums."""

MAX_GRADIENT_DIFFERENCE = 1e-2
"""Relative difference between the norms of a layer's gradients. Adam divides by a gradient's own size, which turns
rounding into steps of its own, so gradients differ more than losses; a gradient that is missing, doubled or added twice
differs by far more. Losses alone would not show that: Adam's steps hardly depend on the size of gradients."""

MIN_ITERATIONS = 3
"""Measured iterations on a real clock: of fewer the spread says nothing (of one it is 0), and a single disturbed one
decides the median. On the virtual clock nothing can disturb, and every repetition gives the same nanoseconds: one is
enough."""

# --- comparison with the model ---

TIE = 1e-3
"""Schedules whose predicted times differ by less than this share are predicted equal; either order agrees with that."""

MAX_TRAFFIC_SHARE = 0.02
"""By how much the bytes on a direction may differ from those planned: TCP may cut super-packets shorter and
acknowledges more often then (at most every segment: 66 bytes in 9,014), ..."""

MAX_TRAFFIC_PER_MESSAGE_BYTES = 500
"""... a message's end, its notice and their acknowledgements travel alone or together, ..."""

MAX_TRAFFIC_BYTES = 50_000
"""... and whatever is not training (keep-alives, a late warm-up) is small. A flow on another route is none of these."""
