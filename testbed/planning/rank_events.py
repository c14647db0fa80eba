"""What a topology says that happens to ranks, as events of a plan."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from testbed.errors import BadInput, listed, meant, require
from testbed.plan.plan import Job
from testbed.plan.timeline import Moment, RankSlower
from testbed.planning.link_events import source_of
from testbed.spec.event_text import EventText
from testbed.spec.topology import Topology


def rank_events(topology: Topology, jobs: Sequence[Job], brought: Collection[str] = ()) -> tuple[RankSlower, ...]:
    """In the order of the topology. Raises BadInput, which blames `--event` for texts that it has `brought`."""
    read = [event for event in map(topology.event, topology.events) if event.what == "rank"]
    return tuple(_event(source_of(topology, event, brought), event, jobs) for event in read)


def _event(name: str, read: EventText, jobs: Sequence[Job]) -> RankSlower:
    expected = f"{read.text.partition(' at ')[0]} at iteration {read.iteration}: a rank is slower from a beginning on"
    require(not read.seconds, name, "events", read.text, expected)
    names = [job.name for job in jobs]
    if not read.name:
        require(len(jobs) == 1, name, "events", read.text, f"JOB rank {read.rank} ..., of jobs {listed(names)}")
    of = read.name or names[0]
    if of not in names:
        raise BadInput.of(name, "events", of, f"one of the jobs ({listed(names)}){meant(of, names)}")
    return RankSlower(of, Moment(read.iteration), read.rank, read.factor, read.text, read.until)
