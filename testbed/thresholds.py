"""Every limit of a judgement, with its reason: the link gate's bands, the verdict on a run, comparison.

Imports nothing of the project. The reasons of the verdict's limits are printed beside them.
"""

from __future__ import annotations

from typing import NamedTuple


class Limit(NamedTuple):
    """A number, and why it is that one."""

    value: float
    why: str

    @property
    def per_cent(self) -> str:
        """A share as people read it, with its first digit."""
        return f"{self.value:.1%}" if self.value >= 1e-3 else f"{self.value:.2%}"


# --- the link gate: is a link what was asked for? ---

RELATIVE_BAND = 0.02
"""Of the RTT, the one-way delay and the rate: what median delays and rates of one idle link differ by between
measurements on an ordinary virtual machine stays well below it."""

DELAY_BAND_S = 0.4e-3
"""Short delays may differ by this much instead: virtual CPUs that halt between packets wake late, by about as much."""

LOSS_CHANCE = 1e-4
"""Asked-for losses are drawn: so seldom a link that is right loses fewer, or more, than the gate lets pass."""

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

# --- the verdict: was a run what it says it was? ---

TRAIN_AGAIN = 2
"""So often at most a training is repeated that the machine disturbed: one that is busy for longer is so by habit, and
its runs are untrusted rightly."""

OVERRUN_SHARE = Limit(0.01, "an overrun delays what follows; one in a hundred is noise")

OVERRUN_LEAST_S = 50e-6
"""What an action may end behind its slot: as much as a message may be late on the virtual clock. Computation takes no
time there, but what a rank and its neighbours do around it takes up to 38 us (108 plans of benchmarks/option_pairs.py),
for which a slot of no length (`W: 0 s`) has no room; real overruns begin at 160 us there."""

LATE_START_S = 2e-3
"""A rank that begins later than this delays the iteration."""

LATE_START_SHARE = Limit(0.25, "half must be late before the median moves")

SPREAD = Limit(0.10, "the same work at the same pace takes the same time")

MEDIAN_KNOWN = Limit(0.05, "where losses or jitter scatter times, enough iterations tell their median all the same")
"""The further end of the 95 % interval of the median, as a share of it."""

SPREAD_VIRTUAL = Limit(1e-3, "on the virtual clock every iteration takes the same, to a hundredth of this")
"""Where the model has all that the plan asks for; what it hangs on by chance (a range) comes on top."""

LOSS_DIFFERENCE = Limit(1e-5, "floats added up in another order differ by this, no more")
"""Relative, in any iteration that is compared."""

LARGEST_LOSS_DIFFERENCE, LARGEST_GRADIENT_DIFFERENCE = 1e-3, 0.1
"""To which the limits of losses and of gradients' norms may grow with what rounding does to a training."""

ROUNDINGS = 10.0
"""So many times the difference that sums in another order make to one process is a run allowed, where that is more than
the limit: AdamW at a learning rate of 0.05 makes 1e-5 to 2e-5 of the last digit in 12 iterations (0.2: 4e-3)."""

COMPARED_ITERATIONS = 12
"""Warm-up included, from the first: rounding grows with every step of the optimizer. Of the shipped models with
microbatches added up in the opposite order losses stay within 5e-8 and norms within 1e-3 for 12 iterations, and are out
of the limits from the 16th on. Later losses must be finite, no more."""

GRADIENT_DIFFERENCE = Limit(1e-2, "Adam amplifies rounding; a wrong gradient differs far more")
"""Relative difference between the norms of a layer's gradients. Adam divides by a gradient's own size, so gradients
differ more than losses; losses alone would not show a wrong one, since Adam's steps hardly depend on its size."""

FIRST_GRADIENTS = Limit(1e-5, "sums in another order differ by less, a lost element or a wrong factor by more")
"""Relative to the norm of a parameter's gradient, before any step of the optimizer."""

WEIGHTS = Limit(5e-3, "the same gradients and the same optimizer move a weight alike")
"""Relative to how far training has moved a parameter. Adam takes a step of its own size for an element whose gradient
is no more than rounding: honest runs came to 5e-4, others drawn later (`benchmarks/mutants.py --correct`) to 9e-4. A
change of a weight's norm counts times the root of its number of elements, since only what has to do with the weights,
as their decay has, changes it by more than one in so many."""

ROUNDING_FACTOR = 10.0
"""Where one process itself comes out differently with sums in another order, so many times that instead."""

CLOCK_SHARE = Limit(0.05, "beyond it nobody knows which of two machines was first")
"""Of an iteration, that the offset of two machines' clocks may be unknown by. Half of their round trip always is, and
the real error is far less where both ways take the same."""

CLOCK_PACE = 1e-4
"""By so much the pace of two machines' clocks may differ: oscillators of computers are within 50 ppm each, and what
NTP adds or takes once they are set is less."""

ITERATIONS = Limit(3, "of fewer, one disturbed iteration decides the median")
"""Measured on a real clock. On the virtual clock nothing can disturb, and every repetition gives the same nanoseconds:
one is enough."""

TRAFFIC_SHARE = 0.02
"""By how much the bytes on a direction may differ from those planned: TCP may cut super-packets shorter and
acknowledges more often then (at most every segment: 66 bytes in 9,014), ..."""

TRAFFIC_PER_MESSAGE_BYTES = 500
"""... a message's end, its notice and their acknowledgements travel alone or together, ..."""

TRAFFIC_BYTES = 50_000
"""... and whatever is not training (keep-alives, a late warm-up) is small. A flow on another route is none of these."""

MESSAGE_SHIFT_S = Limit(1e-3, "a link that changed or a slower rank shifts all messages")
"""Between the first quartile of a flow's extra time in the run and before it: several times what it differs by.

The model sends messages whole, a link carries super-packets: one of another message may come before a message's end in
one run and after it in the next. Up to 0.5 ms, what one takes at 1 Gbit/s, is in this limit; ..."""

MACHINE_SHIFT_S = 0.5e-3
"""... where the slowest link of the route takes longer for one (1.44 ms for a frame of 9 kB at 50 Mbit/s), the limit is
that and this, what first quartiles differ by without links; ..."""

SHIFT_BY_CHANCE = 3.0
"""... and where a few messages scattered widely already before the run (an all-gather is one message per iteration
and pair of replicas, which 16 ranks on two processors send at once), so many standard deviations of the quartiles'
difference."""

ORDER_PACKETS = 4
"""On the virtual clock so many super-packets' time comes on top: where tensor ranks or replicas meet at equal network
cards, a message comes a few packets before or after another's. What that costs an iteration is judged there."""

MODEL_SHARE = Limit(5e-4, "there links and model agree to hundredths of a per cent; more is something else")
"""Virtual clock: of an iteration, outside its prediction or its range, where the model has all that the plan asks for.
Of 57 undisturbed runs two were further off, by what has been cured since (docs/figures.md), the others by 0.04 %."""

CHANGE_SHIFT_VIRTUAL_S = 50e-6
"""Of a flow's messages in one iteration: more is noted. Undisturbed ones stay within 36 us where receives are posted
early; with late ones a notice that waits shifts some by more, and the iteration by nothing."""

CHANGE_SHARE = Limit(0.01, "beyond it a median tells neither of what was before a change nor of what came after")
"""Real clock: between the median over all iterations and that over those in which nothing changed; on the virtual clock
MODEL_SHARE."""

CHANGE_CERTAIN = 5.0
"""Standard errors, from what neighbouring iterations differ by, that a step in their times must have to be one."""

CHANCE_OF_LOSSES = 1e-6
"""So seldom losses alone touch as many messages as came late: of a network that loses packets messages are held against
the model all the same, and there may be hundreds of flows."""

CHANGED_FLOW_SHARE = 0.3
"""Of the largest shift: flows that moved less are not named, since what waits behind a late message moves a little."""

HOST_SHARE = Limit(0.025, "beyond it a time tells of the machine, not the network")

ORDER_SHARE = Limit(0.01, "what comes before its turn delays whoever is overtaken")
"""Of an iteration, that a message of one replica may change places with another's by, in the usual iteration."""

CORE_SHARE = Limit(0.025, "actions were profiled while their rank had its core so much")
"""Of an iteration, that an unpaced rank may stand in its core's queue beyond what it did while it was profiled: half of
what predictions of unpaced runs should be within. Messages take a rank's core as well, by schedule up to 2 % more."""

DISTURBED_SHARE = Limit(0.01, "beyond it medians move more than close schedules differ")

BELIEVED_RATE = 0.10
"""By which the rate of a path through a real network may be off what a topology says of it without a word: what one TCP
connection gets there differs by some per cent from one second to the next. Delays have the link gate's bands."""

# --- memory ---

OVER_LIMIT = 1e-3
"""Share by which activations may be beyond the bytes of the microbatches that are allowed: counters of a few bytes."""

# --- comparison with the model ---

TIE = 1e-3
"""Schedules whose predicted times differ by less than this share are predicted equal; either order agrees with that."""

UNPACED_TIE = 0.05
"""The same without pacing: two ranks with a core each come out within 5 % of what was profiled (docs/figures.md), so
that what is predicted closer together is not ranked by the prediction."""

ONE_PREDICTION = 3e-4
"""Share of a time within which orders of messages make one prediction: half a thousandth between predicted and measured
counts as right, and microseconds that change no order stay well below."""

RING_ORDER_GAIN = 0.01
"""Share of an iteration by which another order of a ring's replicas has to be faster to be named: twice what the model
may be off on the real clock."""

# --- a topology at another scale than its job ---

FULL_SCALE_LEAST_BPS = 2e9
"""The fastest link of a topology for a job at full scale has more: the slowest published one in topologies/ has
5 Gbit/s, those made for labs have 1."""

LAB_MOST_BPS = 20e9
"""Links of a topology for a job at lab scale have less: labs were measured up to 10 Gbit/s."""
