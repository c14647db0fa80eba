"""A plan measured on machines of their own: rank 0 leads, every rank keeps a worker. The files are those of a lab."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from testbed import __version__
from testbed.errors import BadInput, ExitCode, RunFailed, TestbedError
from testbed.lab.namespaces import die_with_parent
from testbed.plan.plan import Plan
from testbed.planning import file, left_out
from testbed.planning.prediction import ranges_of_plan
from testbed.progress import Reporter
from testbed.results.directory import ResultsWriter
from testbed.results.provenance import environment
from testbed.session import deadlines
from testbed.session.cases import StartedSession, asked_of, identity_of, train_cases
from testbed.session.loop import Loop
from testbed.session.pinning import Pinning
from testbed.session.references import References
from testbed.session.running import Running
from testbed.session.world import world_of
from testbed.trace.tables import FORMAT
from testbed.train.launcher import Launcher
from testbed.train.peer_store import connected
from testbed.train.protocol import WorkerPlace, WorldSpec
from testbed.wan import admission, torchrun_environment
from testbed.wan.admission import Introduction
from testbed.wan.believed_paths import as_documents, hints, measure_paths
from testbed.wan.rank_keeper import EndedByTorchrun, RankKeeper
from testbed.wan.real_networks import require_a_real_network
from testbed.wan.remote_workers import Keepers, RemoteWorkers
from testbed.wan.torchrun_environment import TorchrunEnvironment
from testbed.wan.wan_accounts import GivenRoutes, WanAccounts

FIRST_EXCHANGES = 20
"""Words there and back with every machine before anything is timed."""

STOP_S = 30.0

_TELL_S = 10.0
"""So long a rank that cannot take part looks for the others."""

SHAPER = "no emulation"


@dataclass(frozen=True)
class WanRank:
    """What a process that torchrun has started knows of itself."""

    environment: TorchrunEnvironment
    introduction: Introduction


def rank_of(place: TorchrunEnvironment, plan: Plan | None, interface: str | None, trouble: str = "") -> WanRank:
    """What this process says of itself; without a plan, or without an address, what its `trouble` is."""
    there = torchrun_environment.LocalAddress("", "")
    try:
        there = torchrun_environment.local_address(place.host, place.port, interface)
    except BadInput as error:
        trouble = trouble or str(error)
    known = "" if plan is None else hashlib.sha256(file.to_json(plan).encode()).hexdigest()
    n_ranks = place.world_size if plan is None else sum(job.mesh.size for job in plan.jobs)
    mine = Introduction(
        rank=place.rank,
        host=socket.gethostname(),
        version=__version__,
        torch=version("torch"),
        plan=known,
        n_ranks=n_ranks,
        interface=there.interface,
        address=there.address,
        cores=len(os.sched_getaffinity(0)),
        machine=torchrun_environment.boot_name(),
        clock=torchrun_environment.clock_name(),
        tcp=torchrun_environment.congestion_control(),
        trouble=trouble,
    )
    return WanRank(place, mine)


def tell_others(mine: WanRank) -> None:
    """What the trouble of this rank is, if they come soon: it does not wait for them."""
    place = mine.environment
    opens = place.rank == 0 and not place.has_store
    if not opens and not torchrun_environment.answers(place.host, place.port, _TELL_S):
        return
    with suppress(RuntimeError):  # it has gone since
        store = connected(place.store, opens=opens, within_s=_TELL_S)
        admission.give_up(store, place.world_size, mine.introduction)


def follow(mine: WanRank) -> None:
    """Be the keeper of a rank until rank 0 lets it go. Raises BadInput or RunFailed with what rank 0 says."""
    import testbed.train.preload  # noqa: F401 - in the process that forks the worker
    from testbed.train.data import load_corpus
    from testbed.train.idle_threads import sleep_exactly
    from testbed.train.pacing import needed_spin_s

    store = connected(mine.environment.store)
    admission.introduce(store, mine.introduction)
    answer = admission.answer(store)
    if answer.error:
        raise _of_code(answer)
    sleep_exactly()
    keeper_line, worker_line = admission.connect(answer, mine.introduction.rank)
    rank, address = mine.introduction.rank, mine.introduction.address
    RankKeeper(rank, address, keeper_line, worker_line, load_corpus(), needed_spin_s(min)).keep()


def _of_code(answer: admission.Invitation) -> TestbedError:
    return BadInput(answer.error) if answer.code == BadInput.exit_code else RunFailed(answer.error)


def lead(plan: Plan | None, mine: WanRank, directory: Path, reporter: Reporter) -> dict[str, Any]:
    """Rank 0: gather the others, measure, judge; returns the comparison document.

    Its own keeper is a process that it forks. Raises BadInput or RunFailed, and so does every rank.
    """
    import testbed.train.preload  # noqa: F401 - what is forked need not import it again

    try:
        return _lead(plan, mine, directory, reporter)
    except EndedByTorchrun as ended:
        raise RunFailed(str(ended)) from None


def _lead(plan: Plan | None, mine: WanRank, directory: Path, reporter: Reporter) -> dict[str, Any]:
    place = mine.environment
    with ExitStack() as stack:
        store = connected(place.store, opens=not place.has_store)
        _fork_keeper(mine)
        try:
            with reporter.step("waiting for all ranks"):
                come = admission.introductions(store, place.world_size)
            admission.require_alike(come)
            assert plan is not None
            plan = require_a_real_network(plan)
            # before there is a connection that they would hold open
            launchers = [stack.enter_context(Launcher()) for _ in plan.jobs]
            references = References(plan, launchers, None)
            signal.signal(signal.SIGTERM, _ended_by_torchrun)
            ranks = admission.invite(store, come)
        except (Exception, EndedByTorchrun) as error:
            code = error.exit_code if isinstance(error, TestbedError) else ExitCode.RUN_FAILED
            admission.refuse(store, place.world_size, error, code)
            raise
        keepers = stack.enter_context(Keepers(ranks))
        stack.push(_no_more_signals)
        return _session(plan, place, keepers, directory, reporter, references)


def _ended_by_torchrun(*_: object) -> NoReturn:
    _no_more_signals()
    raise EndedByTorchrun(0)


def _no_more_signals(*_: object) -> None:
    """torchrun ends all processes of a machine where one has failed: not while this one tells the others why."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _fork_keeper(mine: WanRank) -> None:
    """Rank 0's own keeper. What ends it, rank 0 has said already."""
    if os.fork() == 0:
        _be_keeper(mine)


def _be_keeper(mine: WanRank) -> NoReturn:
    status = 1
    try:
        die_with_parent(signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        follow(mine)
        status = 0
    except TestbedError as error:
        status = error.exit_code
    except BaseException:  # noqa: BLE001 - nothing may escape a fork
        traceback.print_exc()
    finally:
        os._exit(status)


def _session(
    plan: Plan,
    place: TorchrunEnvironment,
    keepers: Keepers,
    directory: Path,
    reporter: Reporter,
    references: References,
) -> dict[str, Any]:
    """All ranks are connected. Raises RunFailed."""
    results = ResultsWriter(directory, [job.name for job in plan.jobs])
    results.begin()
    file.write(plan, directory / file.NAME)
    ranges = ranges_of_plan(plan)
    with reporter.step("comparing clocks"):
        keepers.compare_clocks(FIRST_EXCHANGES)
        reporter.note(f"between machines times are known to ±{keepers.uncertainty_s * 1e3:.3f} ms")
    paths = measure_paths(plan, keepers, reporter)
    found = hints(paths)
    results.save_json("wan.json", _document(keepers, as_documents(paths), found))
    warned = [*left_out.warnings(plan, ranges), *found]
    for line in warned:
        reporter.say(f"warning: {line}")
    with reporter.step("training the reference in one process"):
        outcomes = references.outcomes()
    workers = [RemoteWorkers(keepers, job.mesh.ranks, job.name if len(plan.jobs) > 1 else "") for job in plan.jobs]
    with Loop(workers) as loop:
        connecting = deadlines.of_connecting(plan)
        with reporter.step("starting workers"):
            reporter.note(f"all have to connect within {connecting}")
            loop.start([_world(plan, number, place, keepers) for number in range(len(plan.jobs))], connecting)
        accounts = WanAccounts(keepers, loop)
        transport = f"tcp ({', '.join(sorted({one.introduction.tcp for one in keepers.ranks}))})"
        identity = identity_of(plan, {"clock": "real"}, shaper=SHAPER, transport=transport, warned=warned)
        manifest = {
            **identity,
            "format": FORMAT,
            **environment(),
            **asked_of(plan),
            "lab": {},
            "machines": [asdict(one.introduction) for one in keepers.ranks],
            "pinning": _pinning(plan, keepers)._asdict(),
            "links": {"reasons": []},
            "deadlines": {"connect": asdict(connecting)},
            "enforced": {},
        }
        results.save_json("manifest.json", manifest)
        running = Running(accounts, loop, results, reporter, False, accounts, ranges)
        try:
            document = train_cases(plan, StartedSession(running, GivenRoutes(), identity, manifest), outcomes)
        finally:
            results.save_tables()
            results.save_json("wan.json", _document(keepers, as_documents(paths), found))
        for of_job in workers:
            of_job.stop(directory / "logs", STOP_S)
    return document


def _world(plan: Plan, number: int, place: TorchrunEnvironment, keepers: Keepers) -> WorldSpec:
    """Where the workers of a job listen, and meet; each keeper has its own place for the log."""
    here = [keepers.ranks[rank].introduction.interface for rank in plan.jobs[number].mesh.ranks]
    places = [WorkerPlace(None, interface) for interface in here]
    return world_of(plan, number, places, store=f"{place.store}/job{number}", logs="")


def _document(keepers: Keepers, paths: Sequence[Any], found: Sequence[str]) -> dict[str, Any]:
    """wan.json"""
    ranks = [
        {
            "rank": rank,
            "host": one.introduction.host,
            "address": one.introduction.address,
            "clock_offset_s": keepers.offset(rank).seconds,
            "clock_uncertainty_s": keepers.offset(rank).uncertainty_s,
        }
        for rank, one in enumerate(keepers.ranks)
    ]
    return {"ranks": ranks, "paths": paths, "hints": found, "uncertainty_s": keepers.uncertainty_s}


def _pinning(plan: Plan, keepers: Keepers) -> Pinning:
    """No rank is pinned; of unpaced ones, machines that have fewer cores than ranks."""
    if all(job.workload.pacing for job in plan.jobs):
        return Pinning()
    there: dict[str, list[Introduction]] = {}
    for one in keepers.ranks:
        there.setdefault(one.introduction.machine, []).append(one.introduction)
    return Pinning(
        reasons=tuple(
            f"{len(ranks)} unpaced ranks share {ranks[0].cores} cores of {ranks[0].host}"
            for ranks in there.values()
            if len(ranks) > ranks[0].cores
        )
    )
