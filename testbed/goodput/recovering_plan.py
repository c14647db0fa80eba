"""A plan whose workers fail while a lab trains its job, as the command line has it.

--checkpoint "every=5,save=200 ms,restart=2 s"     iterations between two checkpoints, and what they take
--checkpoint "every=5,to=neighbour,disk=20"        the same over the links into a neighbour's memory; some on disk, too
--elastic "restart=2 s,repair=60 s"                go on with the replicas that are left, in place of --checkpoint
--elastic "restart=2 s,every=5"                    the same, with copies of an optimizer's shards every 5 iterations
--chaos "mtbf=60 s,seed=3,of=nodes"                failures by chance
--failure "rank 2 at 3.2 s"                        one failure; also of a node, or of a datacenter
--failure "datacenter oslo cut off at 3.2 s for 2 s"    its links carry nothing
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, get_args

from testbed.errors import BadInput, require
from testbed.goodput.elastic_spans import ends_early
from testbed.goodput.elastic_training import elastic_spans
from testbed.goodput.spans import Span, foretold
from testbed.goodput.state_times import keeping_of
from testbed.plan import routes
from testbed.plan.events import trained, trainings
from testbed.plan.moved_weights import shared
from testbed.plan.plan import Case, Job, Plan
from testbed.plan.recovery import (
    LATEST_FAILURE_S,
    MOST_FAILURES,
    MOST_NOTICE_S,
    MOST_SLOT_S,
    Checkpoints,
    Elastic,
    Failure,
    MemoryCheckpoints,
    Of,
    Recovery,
    drawn_failures,
)
from testbed.planning.prediction import parts_of, predict_training
from testbed.planning.recoverable import require_recoverable
from testbed.trace.predictions import predicted_times_s
from testbed.units import SIZE, TIME, parse

CHECKPOINT, ELASTIC, CHAOS, FAILURE = "--checkpoint", "--elastic", "--chaos", "--failure"
_MOST_DIGITS = 9
_EVERY = {"every": "10", "save": "0", "restart": "2 s", "notice": "1 s", "to": "disk"}
_OF_MEMORY = ("disk", "disk-save", "state")


class Chaos(NamedTuple):
    """Failures by chance."""

    mtbf_s: float
    """Mean time between failures of the whole job."""
    seed: int
    of: Of = "ranks"
    cut_s: float | None = None
    """For so long each datacenter is cut off; None where they are none of cuts."""


def read_checkpoints(text: str) -> Checkpoints:
    """What --checkpoint says. Raises BadInput."""
    given = _EVERY | _given_of_checkpoints(text)
    every = _count(CHECKPOINT, "every", given["every"])
    save_s, restart_s = (_time(CHECKPOINT, name, given[name], 0.0, MOST_SLOT_S) for name in ("save", "restart"))
    notice_s = _time(CHECKPOINT, "notice", given["notice"], 0.0, MOST_NOTICE_S)
    if given["to"] not in ("disk", "neighbour"):
        raise BadInput.of(CHECKPOINT, "to", given["to"], "disk, or neighbour")
    memory = None
    if given["to"] == "neighbour":
        memory = _read_memory(given, every)
    elif beside := next((name for name in _OF_MEMORY if name in given), None):
        raise BadInput.of(CHECKPOINT, beside, given[beside], "to=neighbour beside it")
    return Checkpoints(every, save_s, restart_s, memory, notice_s)


def _given_of_checkpoints(text: str) -> dict[str, str]:
    return _options(CHECKPOINT, text, (*_EVERY, *_OF_MEMORY))


def _read_memory(given: dict[str, str], every: int) -> MemoryCheckpoints:
    disk = _count(CHECKPOINT, "disk", given["disk"]) if "disk" in given else None
    if disk is None and "disk-save" in given:
        raise BadInput.of(CHECKPOINT, "disk-save", given["disk-save"], "disk=20 beside it, iterations")
    if disk is not None and disk % every:
        raise BadInput.of(CHECKPOINT, "disk", disk, f"a multiple of every={every}: some of these go to disk as well")
    disk_save_s = _time(CHECKPOINT, "disk-save", given.get("disk-save", "0"), 0.0, MOST_SLOT_S)
    try:
        state = round(parse(given["state"], SIZE, "a size")) if "state" in given else None
    except ValueError as error:
        raise BadInput.of(CHECKPOINT, "state", given["state"], str(error)) from error
    return MemoryCheckpoints(disk, disk_save_s, state)


def read_elastic(text: str) -> Elastic:
    """What --elastic says. Raises BadInput."""
    given = {"restart": "2 s", "every": "1"} | _options(ELASTIC, text, ("restart", "repair", "every"))
    repair_s = None
    if "repair" in given:
        repair_s = _time(ELASTIC, "repair", given["repair"], 1e-6, LATEST_FAILURE_S)
    restart_s = _time(ELASTIC, "restart", given["restart"], 0.0, MOST_SLOT_S)
    return Elastic(restart_s, repair_s, _count(ELASTIC, "every", given["every"]))


def read_chaos(text: str) -> Chaos:
    """What --chaos says. Raises BadInput."""
    given = _options(CHAOS, text, ("mtbf", "seed", "of", "for"))
    if "mtbf" not in given:
        raise BadInput.of(CHAOS, "mtbf", text, "mtbf=60 s, the mean time between failures; seed=3 behind a comma")
    mtbf_s = _time(CHAOS, "mtbf", given["mtbf"], 1e-3, LATEST_FAILURE_S)
    kinds: tuple[Of, ...] = get_args(Of)
    of = next((kind for kind in kinds if kind == given.get("of", "ranks")), None)
    if of is None:
        raise BadInput.of(CHAOS, "of", given["of"], ", ".join(kinds))
    cut_s = _time(CHAOS, "for", given.get("for", "2 s"), 1e-6, MOST_SLOT_S) if of == "cuts" else None
    if cut_s is None and "for" in given:
        raise BadInput.of(CHAOS, "for", given["for"], "of=cuts beside it: datacenters that are cut off for so long")
    return Chaos(mtbf_s, _number(CHAOS, "seed", given.get("seed", "1")), of, cut_s)


def read_failure(text: str) -> Failure:
    """What --failure says. Raises BadInput."""
    said = " ".join(text.split())
    if match := re.fullmatch(r"datacenter ([^\s/]+) cut off at (.+) for (.+)", said):
        place, *times = match.groups()
        at_s = _time(FAILURE, "at", times[0], 0.0, LATEST_FAILURE_S)
        return Failure(None, at_s, place, _time(FAILURE, "for", times[1], 1e-6, MOST_SLOT_S))
    match = re.fullmatch(rf"(?:rank ([0-9]{{1,{_MOST_DIGITS}}})|(node|datacenter) (\S+)) at (.+)", said)
    if match is None:
        expected = "rank 2, node oslo/1, datacenter oslo at 3.2 s, or datacenter oslo cut off at 3.2 s for 2 s"
        raise BadInput.of(FAILURE, "option", text, f"{expected}, of the job's own time: saving and restarts count")
    rank, kind, place, at = match.groups()
    at_s = _time(FAILURE, "at", at, 0.0, LATEST_FAILURE_S)
    if rank is not None:
        return Failure(int(rank), at_s)
    if ("/" in place) != (kind == "node"):
        raise BadInput.of(FAILURE, kind, place, "a node such as oslo/1" if kind == "node" else "a datacenter's name")
    return Failure(None, at_s, place)


def _options(option: str, text: str, known: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in known or name in found:
            raise BadInput.of(option, "option", part, f"{', '.join(known)}, each once at most, as in {known[0]}=...")
        found[name] = value
    return found


def _count(option: str, name: str, text: str) -> int:
    if (found := _number(option, name, text)) < 1:
        raise BadInput.of(option, name, text, "1 iteration or more")
    return found


def _number(option: str, name: str, text: str) -> int:
    if not (text.isdecimal() and text.isascii() and len(text) <= _MOST_DIGITS):
        raise BadInput.of(option, name, text, f"a whole number from 0, of {_MOST_DIGITS} digits at most")
    return int(text)


def _time(option: str, name: str, text: str, least_s: float, most_s: float) -> float:
    try:
        seconds = 0.0 if text == "0" else parse(text, TIME, "a time")
    except ValueError as error:
        raise BadInput.of(option, name, text, str(error)) from error
    if not least_s <= seconds <= most_s:
        raise BadInput.of(option, name, text, f"a time from {least_s:g} to {most_s:g} s")
    return seconds


def with_recovery(
    plan: Plan, checkpoint: str | None, failures: Sequence[str], chaos: str | None, elastic: str | None = None
) -> Plan:
    """The plan with what is asked for; as it is where that is nothing.

    Of failures by chance it has those that come while any of its cases is trained. Raises BadInput, also for what
    cannot be beside that, and for failures that leave no replica to go on with.
    """
    asked = next((text for text in (checkpoint, elastic, *failures, chaos) if text is not None), None)
    if asked is None:
        return plan
    if checkpoint is not None and elastic is not None:
        raise BadInput.of(ELASTIC, "option", elastic, f"no {CHECKPOINT} beside it: those that are left have the state")
    known = (CHECKPOINT, checkpoint), (ELASTIC, elastic), (FAILURE, failures or None)
    option = next((name for name, given in known if given is not None), CHAOS)
    how = Recovery(None, (), read_elastic(elastic)) if elastic is not None else None
    how = how or Recovery(read_checkpoints("every=10" if checkpoint is None else checkpoint), ())
    named = sorted(map(read_failure, failures), key=lambda failure: failure.at_s)
    by_chance = read_chaos(chaos) if chaos is not None else None
    if checkpoint is not None:
        _require_cuts_for_notice(checkpoint, named, by_chance)
    found = replace(plan, recovery=replace(how, failures=tuple(named)))
    require_recoverable(replace(plan, recovery=how), option, "option")
    require_recoverable(found, FAILURE, "option")
    if by_chance is None:
        require_replicas_left(found, FAILURE, "option")
        if named:
            _require_in_training(named[-1], _ends_s(found))
        return found
    every = sorted([*named, *_first_drawn(plan.jobs[0], by_chance)], key=lambda failure: failure.at_s)
    whole = replace(plan, recovery=replace(how, failures=tuple(every[:MOST_FAILURES])))
    require_recoverable(whole, CHAOS, "option")
    require_replicas_left(whole, CHAOS, "option")
    ends_s = _ends_s(whole)
    if named:
        _require_in_training(named[-1], ends_s)
    came = tuple(failure for failure in every if failure.at_s < ends_s)
    if len(came) >= MOST_FAILURES:
        raise BadInput.of(CHAOS, "option", chaos, f"fewer than {MOST_FAILURES} failures while a case is trained")
    return replace(plan, recovery=replace(how, failures=came))


def _first_drawn(job: Job, chaos: Chaos) -> Iterable[Failure]:
    """As many of those that come by chance as a plan may have."""
    places = _places(job, chaos.of)
    failing = drawn_failures(chaos.mtbf_s, LATEST_FAILURE_S, job.mesh.size, chaos.seed, places, chaos.cut_s)
    return islice(failing, MOST_FAILURES)


def _require_cuts_for_notice(checkpoint: str, named: Sequence[Failure], chaos: Chaos | None) -> None:
    """Raises BadInput where it is said how long someone who is cut off is waited for, and nobody can be."""
    given = _given_of_checkpoints(checkpoint)
    cuts = any(failure.cut_s is not None for failure in named) or (chaos is not None and chaos.cut_s is not None)
    if "notice" in given and not cuts:
        expected = f"{FAILURE} 'datacenter NAME cut off at 3.2 s for 2 s' or {CHAOS} of=cuts beside it"
        raise BadInput.of(CHECKPOINT, "notice", given["notice"], expected)


def _ends_s(plan: Plan) -> float:
    """When the longest of the trainings ends, of the job's own time."""
    return max(spans_of_case(plan, case)[-1].end_s for case in plan.cases)


def _require_in_training(last: Failure, ends_s: float) -> None:
    """Raises BadInput for a failure that no training lasts until."""
    expected = f"a time before {ends_s:.4g} s, when the training is over"
    require(last.at_s < ends_s, FAILURE, "option", _said(last), expected)


def require_replicas_left(plan: Plan, source: str, field: str) -> None:
    """Raises BadInput, as of this field, where a training is elastic and failures take its last replica, or a shard of
    its optimizer that is nowhere else."""
    elastic = plan.recovery is not None and plan.recovery.elastic is not None
    for case in plan.cases if elastic else ():
        if (failure := ends_early(elastic_spans(plan, case))) is not None:
            lost, left = "the last one is lost", "a replica that is left behind every failure"
            if shared(plan.jobs[0].workload):
                lost = "a shard is lost"
                left = "a replica left that has each shard, its own or the copy of another one's, behind every failure"
            raise BadInput.of(source, field, f"{_said(failure)}, with which {lost}", left)


def _said(failure: Failure) -> str:
    place = "" if failure.rank is None else f"rank {failure.rank}"
    kind = "node" if "/" in failure.place else "datacenter"
    cut = "" if failure.cut_s is None else " cut off"
    return f"{place or f'{kind} {failure.place}'}{cut} at {failure.at_s:g} s"


def _places(job: Job, of: Of) -> list[str]:
    """What may fail of a job, where that are no ranks."""
    sites = list(dict.fromkeys(map(routes.datacenter_of, job.nodes)))
    return {"ranks": [], "nodes": list(job.nodes), "datacenters": sites, "cuts": sites}[of]


def spans_of_case(plan: Plan, case: Case) -> list[Span]:
    """What the job of a plan whose workers fail does with its time, as the model has it."""
    assert plan.recovery is not None
    if plan.recovery.elastic is not None:
        return elastic_spans(plan, case)
    (predicted,) = parts_of(plan, case, predict_training(plan, case).trace)
    rounds = next(trained(plan, cases, 0) for cases in trainings(plan.cases) if case in cases)
    times_s = predicted_times_s(predicted, rounds)
    return foretold(times_s.__getitem__, len(rounds), plan.recovery, keeping_of(plan, case))
