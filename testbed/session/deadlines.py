"""How long a session waits before it gives up, each deadline with what it was derived from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from testbed.plan.framing import WARMUP_ROUNDS
from testbed.plan.network_state import planned
from testbed.plan.plan import Plan
from testbed.planning.prediction import predict_training
from testbed.planning.training_prediction import TrainingPrediction
from testbed.spec.workload import Workload
from testbed.units import show_time

SLOWEST_FACTOR = 10.0
"""An iteration may take this many times its predicted time: a machine that slow gives an untrusted run, no hang ..."""

ITERATION_MARGIN_S = 10.0
"""... and this much more: the first iteration touches all of its memory, and ranks wake up on a busy machine."""

PEER_TIMEOUT_S = 600.0
"""The least of gloo's own waits."""

UNKNOWN_ITERATION_S = 60.0
"""For an iteration that nothing is known of: the profile of unpaced computation."""

CONNECT_S = 60.0
"""For workers to be forked, enter their containers and join the process group, on a busy machine."""

ROUND_TRIPS_PER_PAIR = 10
"""Of two ranks that connect: the handshake, gloo's exchange of ids, and the warm-up messages."""

WARM_UP_MESSAGES = 2 * WARMUP_ROUNDS
"""Of each pair, both ways together."""


@dataclass(frozen=True)
class Deadline:
    """A time limit, and why it is that long."""

    seconds: float
    derived: str

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s ({self.derived})"


def of_iteration(predicted_s: float, held_s: float = 0.0) -> Deadline:
    """For one iteration that should take `predicted_s`, in which links send nothing for `held_s`, on any machine."""
    working_s = predicted_s - held_s
    seconds = SLOWEST_FACTOR * working_s + ITERATION_MARGIN_S + held_s
    derived = f"{SLOWEST_FACTOR:g} x the predicted {show_time(working_s)} + {ITERATION_MARGIN_S:g} s"
    return Deadline(seconds, derived + (f" + {show_time(held_s)} without a link" if held_s else ""))


def of_training(training: TrainingPrediction) -> Deadline:
    """For any iteration of a training, each as it is predicted: the longest. It names events that lose packets: nobody
    can predict how long they make one."""
    times_s = zip(training.trace.iterations().tolist(), training.trace.makespans().tolist(), strict=True)
    every = (of_iteration(time_s, training.held_s.get(number, 0.0)) for number, time_s in times_s)
    longest = max(every, key=lambda deadline: deadline.seconds)
    lossy = dict.fromkeys(one.event.said for one in training.events if one.event.loss)
    return replace(longest, derived="; ".join([longest.derived, *(f"{said} may take longer" for said in lossy)]))


def of_peers(plan: Plan) -> float:
    """Seconds of gloo's own waits: longer than any deadline of the loop, which knows better what is the matter."""
    made = (case for case in plan.cases if all(chosen.rows is not None for chosen in case.jobs))
    known = (of_training(predict_training(plan, case)).seconds for case in made)
    return max(PEER_TIMEOUT_S, 2 * max(known, default=0.0))


def of_unknown_iteration() -> Deadline:
    """For one iteration before anything is known of the machine."""
    return Deadline(UNKNOWN_ITERATION_S, "nothing is known of an unpaced iteration yet")


def of_reference(workload: Workload, iterations: int) -> Deadline:
    """For so many iterations in one process: computation that fits its slots takes no longer than all slots in turn."""
    pacing = workload.pacing
    if pacing is None:
        seconds = iterations * UNKNOWN_ITERATION_S
        return Deadline(seconds, f"{iterations} iterations of which nothing is known, {UNKNOWN_ITERATION_S:g} s each")
    ranks = range(workload.parallelism.pipeline)
    slots_s = sum(pacing.slowest(kind, rank) for kind in ("F", "I", "W") for rank in ranks)
    slots_s *= iterations * workload.microbatches
    derived = f"{SLOWEST_FACTOR:g} x all slots in turn, {show_time(slots_s)}, + {ITERATION_MARGIN_S:g} s"
    return Deadline(SLOWEST_FACTOR * slots_s + ITERATION_MARGIN_S, derived)


def longest_round_trip_s(plan: Plan) -> float:
    """Of two datacenters, on the planned network."""
    network = planned(plan.network)
    delays_s = (sum(network.links[index].delay_s for index in route) for route in network.routes.values())
    return 2 * max(delays_s, default=0.0)


def of_connecting(plan: Plan) -> Deadline:
    """For all workers to connect: every rank meets every other one after the other."""
    ranks = sum(job.mesh.size for job in plan.jobs)
    network, rtt_s = planned(plan.network), longest_round_trip_s(plan)
    message = max((job.workload.message_bytes() for job in plan.jobs), default=0)
    slowest = min((direction.rate_bps for direction in network.everything), default=float("inf"))
    warm_up_s = WARM_UP_MESSAGES * ranks * 8 * message / slowest
    streams = max((job.workload.streams for job in plan.jobs), default=1)
    seconds = CONNECT_S + ranks * streams * ROUND_TRIPS_PER_PAIR * rtt_s + warm_up_s
    over = f" over each of {streams} streams" if streams > 1 else ""
    derived = (
        f"{CONNECT_S:g} s + {ROUND_TRIPS_PER_PAIR} round trips of {show_time(rtt_s)} with each of {ranks} ranks{over} "
        f"+ {show_time(warm_up_s)} for warm-up messages"
    )
    return Deadline(seconds, derived)
