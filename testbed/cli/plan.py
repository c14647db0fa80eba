"""`testbed plan`: topology and workloads resolved into the one file that a run needs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from testbed.cli import options
from testbed.errors import BadInput, DoesNotFit, listed
from testbed.files import require_writable, write_output

if TYPE_CHECKING:
    from testbed.plan.plan import Plan
    from testbed.plan.timeline import Event, Moment
    from testbed.routing.planner import Reach
    from testbed.routing.policies import PolicyChoice


_MOST_DIGITS = 9
"""Of a number of iterations."""


class Routing(NamedTuple):
    """What is asked for beside default routes, and jobs that train on the whole network from beginning to end."""

    policies: tuple[PolicyChoice, ...]
    reach: Reach
    """What the policies route."""
    events: tuple[Event, ...] = ()
    """What is to happen while jobs train."""
    alone: bool = False
    """Whether every job is trained by itself as well."""


class PlanOptions(NamedTuple):
    """What is asked of a plan's schedules, routes and events: the options of that name as they were given."""

    schedule: Sequence[str] | None
    schedules_from: Path | None = None
    policy: Sequence[str] | None = None
    elephants_from: str | None = None
    detour: int | None = None
    lose: Sequence[str] | None = None
    arrive: Sequence[str] | None = None
    depart: Sequence[str] | None = None
    swap: Sequence[str] | None = None
    alone: bool = False
    event: Sequence[str] | None = None
    adapt: str | None = None
    robust: bool = False
    rounds: options.RoundsName | None = None
    checkpoint: str | None = None
    failure: Sequence[str] | None = None
    chaos: str | None = None
    background: Path | None = None
    vary: Sequence[str] | None = None
    elastic: str | None = None

    def by_option(self) -> dict[str, object]:
        """What was given, by the option's name."""
        given = {f"--{name.replace('_', '-')}": value for name, value in self._asdict().items()}
        return given | {"--alone": self.alone or None, "--robust": self.robust or None}


def plan(
    topology: options.TopologyFile,
    workloads: options.WorkloadFiles,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.")] = Path("plan.json"),
    schedule: options.Schedules = None,
    iterations: options.Iterations = None,
    schedules_from: options.SchedulesFrom = None,
    policy: options.Policies = None,
    elephants_from: options.ElephantsFrom = None,
    detour: options.Detour = None,
    enforce: options.Enforce = None,
    background: options.BackgroundFile = None,
    event: options.Events = None,
    lose: options.Lose = None,
    arrive: options.Arrive = None,
    depart: options.Depart = None,
    swap: options.Swap = None,
    adapt: options.Adapt = None,
    vary: options.Vary = None,
    rounds: options.Rounds = None,
    checkpoint: options.Checkpoint = None,
    elastic: options.ElasticOption = None,
    failure: options.Failures = None,
    chaos: options.ChaosOption = None,
    alone: options.Alone = False,
    clock: options.ClockOption = options.ClockName.real,
    seed: options.SeedOption = None,
    settings: options.Settings = None,
    robust: options.Robust = False,
    strict: options.StrictOption = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Write plan.json: who is where, the routes, every schedule. `testbed run plan.json` measures it.

    Several workloads are jobs at the same time, on nodes of their own. The first schedules of all of them are one case,
    the second ones another, and so on; a workload with one schedule has it in every case. To be trained together they
    need as many iterations (--iterations) and warm-ups, but with --rounds free. With --policy, every case takes the
    routes that a policy chooses of those that the topology has; with several there is a case for each.
    """
    from testbed.plan.plan import Clock as PlannedClock
    from testbed.planning import resolve

    comes_goes = lose, arrive, depart, swap, alone, event, adapt, robust, rounds, checkpoint, failure, chaos, background
    asked = PlanOptions(schedule, schedules_from, policy, elephants_from, detour, *comes_goes, vary, elastic)
    refuse_beside_plan(topology, workloads)
    refuse_kept_for_several(workloads, schedules_from)
    require_writable(out, "--out")
    clocked = PlannedClock(clock.value, options.seed_of(seed, virtual=clock is options.ClockName.virtual))
    made = resolve.load_plan(
        topology,
        *workloads,
        settings=settings or [],
        events=event or [],
        background=background,
        iterations=iterations,
    )
    made = enforced(resolve.with_clock(_in_rounds(made, rounds), clocked), enforce)
    made, remarks = scheduled_and_routed(made, asked, workloads, quiet=quiet, strict=strict)
    _write_and_show(made, out, remarks, as_json=as_json)


def _warnings(made: Plan) -> list[str]:
    """Of predictions that are ranges, and of rings in another order. Raises BadInput for what cannot be predicted."""
    from testbed.planning.left_out import of_ties
    from testbed.planning.prediction import ranges_of_plan
    from testbed.planning.ring_order import of_rings

    return of_ties(made, ranges_of_plan(made)) + of_rings(made)


def _write_and_show(made: Plan, out: Path, remarks: Sequence[str], *, as_json: bool) -> None:
    """The plan into `out`, and what is to be said of it. Raises BadInput for what cannot be predicted; nothing is
    written then."""
    from testbed.cli import plan_tables
    from testbed.cli.full_scale_tables import derivation_lines, full_scale_tables
    from testbed.cli.goodput_tables import foretold_lines
    from testbed.full_scale.derivation import derivation
    from testbed.full_scale.similitude_bound import full_scale_times
    from testbed.goodput.foretelling import foretold_goodput
    from testbed.planning import file

    warned = _warnings(made)
    write_output(out, file.to_json(made), "--out")
    derived = [line for job in made.jobs for line in derivation(made, job)]
    foretold = foretold_goodput(made)
    if as_json:
        facts: dict[str, object] = {"written_to": str(out), "cases": [case.label for case in made.cases]}
        facts |= {"left_out": dict(made.left_out), "warnings": warned} | ({"goodput": foretold} if foretold else {})
        options.emit(facts | {"derivation": [line._asdict() for line in derived], "full_scale": full_scale_times(made)})
        return
    console = options.stdout_console(140)
    options.show(console, plan_tables.plan_table(made))
    if derived:
        times = full_scale_tables(list(full_scale_times(made).items()), console.width)
        options.show(console, derivation_lines(derived), *times)
    plan_tables.print_remarks(console, made)
    options.show(console, *remarks, *options.warnings(warned), *foretold_lines(foretold))
    console.print(f"written to {out}", highlight=False, soft_wrap=True)


def enforced(plan: Plan, enforcement: options.Enforcement | None) -> Plan:
    """The plan whose flows are kept to their routes as asked, Raises BadInput, also where nothing would use it."""
    from testbed.lab.hashing import equal_hops
    from testbed.plan.network_state import planned
    from testbed.planning.resolve import with_enforcement

    if enforcement is options.Enforcement.ports and not equal_hops(planned(plan.network)):
        expected = "rules: routers hash among routes of equal delay and length, as in a Clos, and this network has none"
        raise BadInput.of("--enforce", "option", enforcement.value, expected)
    return with_enforcement(plan, None if enforcement is None else enforcement.value)


def refuse_beside_plan(what: Path, workloads: Sequence[Path]) -> None:
    """Raises BadInput for workloads beside a plan or a results directory."""
    if is_plan(what):
        raise BadInput.of(str(what), "WORKLOAD", str(workloads[0]), "none: a plan has its jobs already")


def is_plan(what: Path) -> bool:
    """Whether this is a plan or a results directory, no topology. Raises BadInput for a file that cannot be read."""
    from testbed.spec.presets import is_preset

    of_results = what.is_dir() and not is_preset(what)
    return of_results or (what.suffix == ".json" and '"cases"' in options.read_text(what))


def refuse_kept_for_several(workloads: Sequence[Path], schedules_from: Path | None) -> None:
    """Raises BadInput for kept schedules beside several workloads."""
    if len(workloads) > 1 and schedules_from:
        expected = "one: a run's file does not say whose schedules they are"
        raise BadInput.of("--schedules-from", "option", f"{len(workloads)} workloads", expected)


def routing_of(
    policies: Sequence[str] | None,
    elephants_from: str | None,
    detour: int | None,
    events: Sequence[Event] = (),
    *,
    alone: bool = False,
) -> Routing:
    """What --policy, --alone and their like say. Raises BadInput, also for an option that nothing would use."""
    from testbed.routing.policies import choose
    from testbed.routing.rerouting import policy_of

    for option, value in (("--elephants-from", elephants_from), ("--detour", detour)):
        if value is not None and not policies:
            raise BadInput.of(option, "option", value, "--policy beside it: all flows take default routes without one")
    reach = options.reach_of(elephants_from, detour)
    chosen = tuple(map(choose, policies or ()))
    if events and alone:
        expected = "no --alone: what an event costs a job by itself is a run of that job"
        raise BadInput.of(events[0].option, "option", events[0].name, expected)
    if events and len(chosen) > 1:
        expected = f"one at most, with {events[0].option}"
        raise BadInput.of("--policy", "policy", ", ".join(choice.label for choice in chosen), expected)
    if events and chosen:
        policy_of(chosen[0].label)
    return Routing(chosen, reach, tuple(events), alone)


def events_of(plan: Plan, asked: PlanOptions) -> tuple[Event, ...]:
    """What --lose, --arrive, --depart and --swap say of a plan. Raises BadInput."""
    from testbed.plan.timeline import JobArrives, JobDeparts, LinkLost, ScheduleSwapped

    found: list[Event] = [LinkLost(*pair) for pair in _at("--lose", asked.lose, "NAME@K, as in pod-spine1@3")]
    for kind, texts in ((JobArrives, asked.arrive), (JobDeparts, asked.depart)):
        found += [kind(*pair) for pair in _at(kind.option, texts, "JOB@K, as in tiny-gpt-pp4@3")]
    if asked.swap and len(plan.jobs) > 1:
        raise BadInput.of("--swap", "option", asked.swap[0], "one job: events of a plan.json say of which they are")
    swaps = _at("--swap", asked.swap, "LABEL@K, as in zb-h1@3")
    return *found, *(ScheduleSwapped(plan.jobs[0].name, at, label) for label, at in swaps)


def _at(option: str, texts: Sequence[str] | None, expected: str) -> Iterator[tuple[str, Moment]]:
    """What happens, and when. Raises BadInput."""
    from testbed.plan.timeline import Moment

    for text in texts or ():
        what, _, after = text.rpartition("@")
        if not what or not after.isdecimal() or len(after) > _MOST_DIGITS:
            raise BadInput.of(option, "option", text, expected)
        yield what, Moment(int(after))


def scheduled_and_routed(
    plan: Plan, asked: PlanOptions, sources: Sequence[Path], *, quiet: bool, strict: bool, to_train: bool = False
) -> tuple[Plan, tuple[str, ...]]:
    """The plan with all that is asked of it, and policies' remarks; `sources` are the workloads' files.

    Raises BadInput, `to_train` also for what cannot be trained.
    """
    from testbed.plan.alone import require_several
    from testbed.planning.resolve import require_trainable

    events = events_of(plan, asked)
    routing = routing_of(asked.policy, asked.elephants_from, asked.detour, events, alone=asked.alone)
    if asked.alone:
        require_several(plan)
    plan = complete(
        plan, asked.schedule, asked.schedules_from, quiet=quiet, strict=strict, robust=asked.robust, sources=sources
    )
    if to_train:
        require_trainable(plan)
    if plan.rounds == "free":
        _refuse_beside_free(plan, asked)
    plan, remarks = routed(plan, routing, quiet=quiet)
    if asked.adapt is not None:
        from testbed.adaptation.adapting_plan import with_adaptation
        from testbed.adaptation.may_change import may_change

        plan = with_adaptation(plan, asked.adapt, may=may_change(asked.vary or ()))
    elif asked.vary:
        raise BadInput.of("--vary", "option", asked.vary[0], "--adapt beside it: who changes that")
    recovers = asked.checkpoint, asked.elastic, asked.chaos, asked.failure or None
    if any(given is not None for given in recovers):  # an empty text is refused by who reads it
        from testbed.goodput.recovering_plan import with_recovery

        plan = with_recovery(plan, asked.checkpoint, asked.failure or (), asked.chaos, asked.elastic)
    return _with_iterations(plan), remarks


def _refuse_beside_free(plan: Plan, asked: PlanOptions) -> None:
    """Raises BadInput for what jobs that run freely do not have yet."""
    from testbed.plan.free_rounds import require_free

    beside: dict[str, object] = {"events": events_of(plan, asked), "--adapt": asked.adapt, "--alone": asked.alone}
    beside |= {"--checkpoint": asked.checkpoint, "--failure": asked.failure, "--chaos": asked.chaos}
    beside |= {"--elastic": asked.elastic}
    require_free(plan, [name for name, given in beside.items() if given])


def _in_rounds(plan: Plan, rounds: options.RoundsName | None) -> Plan:
    """The plan whose jobs begin their iterations as asked; policies choose for that."""
    return replace(plan, rounds="free") if rounds is options.RoundsName.free else plan


def _with_iterations(plan: Plan) -> Plan:
    """A plan with schedules; where jobs run freely, with as many iterations as each is to train. Raises BadInput."""
    from testbed.planning.prediction import freely

    return freely(plan) if plan.rounds == "free" else plan


def to_train(
    plan: Plan, asked: PlanOptions, what: Path, workloads: Sequence[Path] | None, *, quiet: bool, strict: bool
) -> tuple[Plan, tuple[str, ...]]:
    """A plan of these files as `scheduled_and_routed` makes it; one that was read, from `what`, is as it is. Raises
    BadInput, `strict` also for one that left schedules out.
    """
    if not workloads:
        require_all(plan, what, strict=strict)
        return plan, ()
    return scheduled_and_routed(plan, asked, workloads, quiet=quiet, strict=strict, to_train=True)


def routed(plan: Plan, routing: Routing, *, quiet: bool) -> tuple[Plan, tuple[str, ...]]:
    """The plan under the policies and with the events that were asked for, and policies' remarks. Raises BadInput."""
    remarks: tuple[str, ...] = ()
    if routing.events:
        from testbed.routing.rerouting import with_timeline

        plan = with_timeline(plan, routing.events)
    if routing.policies:
        from testbed.cli.progress import Terminal
        from testbed.routing.apply import with_policies

        with Terminal(quiet=quiet).solving() as watch:
            plan, remarks = with_policies(plan, routing.policies, routing.reach, watch)
    if routing.events:
        from testbed.routing.policies import everywhere
        from testbed.routing.rerouting import Controller, with_continuations

        policy = everywhere(routing.policies[0].label) if routing.policies else None
        plan = with_continuations(plan, Controller(policy, routing.reach))
    if routing.alone:
        from testbed.plan.alone import with_alone

        plan = with_alone(plan)
    if plan.background:
        from testbed.plan.background import check_background
        from testbed.plan.network_state import planned

        check_background(plan, planned(plan.network), plan.network.name)
    return plan, remarks


def complete(
    unfinished: Plan,
    schedule: Sequence[str] | None,
    schedules_from: Path | None,
    *,
    quiet: bool,
    strict: bool = False,
    robust: bool = False,
    sources: Sequence[Path] = (),
) -> Plan:
    """The plan with its cases: schedules kept in a file, the others generated. Raises BadInput.

    `strict`: also for one schedule that does not fit, instead of leaving it out. `robust`: `best` is chosen by the 95th
    percentile. `sources` are the workloads' files.
    """
    from testbed.cli.progress import Terminal
    from testbed.full_scale.similitude import scale_warnings
    from testbed.planning import schedules
    from testbed.schedule.schedule_file import kept_in

    reporter = Terminal(quiet=quiet)
    for line in options.warnings(scale_warnings(unfinished)):
        reporter.say(line)
    with reporter.solving() as watch:
        kept = kept_in(options.read_text(schedules_from), str(schedules_from)) if schedules_from else None
        return schedules.with_every_job(
            unfinished,
            schedule or [],
            kept,
            watch,
            sources=list(map(str, sources)),
            strict=strict,
            robust=robust,
        )


def plan_of(
    what: Path,
    workloads: Sequence[Path] | None,
    schedule: Sequence[str] | None,
    settings: Sequence[str] | None,
    *,
    events: Sequence[str] | None = None,
    background: Path | None = None,
    quiet: bool,
    strict: bool = False,
    robust: bool = False,
    rounds: options.RoundsName | None = None,
    trust: bool = False,
) -> Plan:
    """A plan or the one in a results directory; with workloads that of a topology and these. Raises BadInput."""
    asked = PlanOptions(schedule, event=events, robust=robust, rounds=rounds, background=background)
    unfinished = unfinished_plan(what, workloads, asked, settings, trust=trust)
    if not workloads:
        require_all(unfinished, what, strict=strict)
        return unfinished
    plan = complete(unfinished, schedule, None, quiet=quiet, strict=strict, robust=robust, sources=workloads)
    return _with_iterations(plan)


def unfinished_plan(
    what: Path,
    workloads: Sequence[Path] | None,
    asked: PlanOptions,
    settings: Sequence[str] | None,
    iterations: int | None = None,
    *,
    trust: bool = False,
) -> Plan:
    """A plan that is there, or one of files that has no schedules and routes yet. Raises BadInput.

    Code that a plan brings along is run only if it is to be trusted, or the user says so on a terminal.
    """
    from testbed.planning import resolve

    if not workloads:
        return read_plan(what, {"--iterations": iterations, "--set": settings} | asked.by_option(), trust=trust)
    refuse_beside_plan(what, workloads)
    refuse_kept_for_several(workloads, asked.schedules_from)
    made = resolve.load_plan(
        what,
        *workloads,
        settings=settings or [],
        events=asked.event or [],
        background=asked.background,
        iterations=iterations,
    )
    return _in_rounds(made, asked.rounds)


def require_trust(path: Path) -> None:
    """Raises BadInput for a plan with code of its own, unless a user at a terminal says that it may run."""
    from testbed.planning import file

    code = file.code_in(path)
    if not code:
        return
    if sys.stdin.isatty() and sys.stderr.isatty():
        question = f"{path} brings Python code along, which runs with your rights: {listed(code)}. Run it?"
        if typer.confirm(question, err=True):
            return
    expected = "no code of its own, or --trust: it runs with your rights"
    raise BadInput.of(str(path), "code", listed(code), expected)


def require_all(plan: Plan, path: Path, *, strict: bool) -> None:
    """With `strict`, raises DoesNotFit where a plan that was read left schedules out, with why."""
    if strict and plan.left_out:
        raise DoesNotFit(f"{path}: left_out: {'; '.join(plan.left_out.values())}")


def read_plan(path: Path, given: Mapping[str, object], *, trust: bool = False) -> Plan:
    """The plan in a file or directory, which decides what options `given` beside it would. Raises BadInput."""
    from testbed.planning import file
    from testbed.spec.presets import is_preset, preset_meant

    for name, value in given.items():
        if value not in (None, []):
            given_as = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            raise BadInput.of(str(path), name, given_as, "TOPOLOGY and WORKLOAD: a plan has decided that already")
    if path.suffix in (".yaml", ".yml") or (is_preset(path) and not path.is_dir()):
        raise BadInput.of(str(path), "WORKLOAD", "nothing", "a workload after the topology")
    if not path.exists() and (near := preset_meant(path)) is not None:
        raise BadInput.of(str(path), "file", "no such file", f"a plan, or TOPOLOGY WORKLOAD (did you mean {near}?)")
    if not trust:
        require_trust(path)
    plan = file.read(path)
    if not plan.cases:
        raise BadInput.of(str(path), "cases", "none", "something to measure")
    for number, case in enumerate(plan.cases):
        if case.continues is not None and case.continues.policy is not None:
            from testbed.routing.rerouting import policy_of

            try:
                policy_of(case.continues.policy)
            except BadInput as error:
                why = str(error).removeprefix("--policy: policy: ")
                raise BadInput(f"{path}: cases.{number}.continues.policy: {why}") from error
    return plan
