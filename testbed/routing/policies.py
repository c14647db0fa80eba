"""Policies by name: built in, from installed packages or from FILE.py:NAME; chosen with options, run and checked."""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from testbed.errors import BadInput
from testbed.model.network import Ints
from testbed.plugins import Registry, Unusable, in_file, own_code, read_content
from testbed.routing.planner import PlannedCases, Planner, PlannerInput
from testbed.routing.routing_problem import Routes, RoutingProblem
from testbed.spec import yaml_tree
from testbed.spec.choice import own_name
from testbed.spec.plugin_options import checked_options

Policy = Callable[..., Any]
"""(RoutingProblem, **options) -> per flow the number of its candidate, or exact.Decision: that and a remark."""


def _as_policy(name: str, loaded: object) -> Policy | Planner:
    if isinstance(loaded, Planner) or (callable(loaded) and not isinstance(loaded, type)):
        return loaded
    expected = f"a function RoutingProblem -> route numbers, or a Planner, not {type(loaded).__name__}"
    raise Unusable(name, expected)


POLICIES = Registry(
    "testbed.policies",
    {
        "shortest": "testbed.routing.simple:shortest",
        "ecmp": "testbed.routing.simple:ecmp",
        "static": "testbed.routing.simple:static",
        "greedy": "testbed.routing.greedy_routes:greedy",
        "greedy-bytes": "testbed.routing.greedy_routes:greedy_bytes",
        "greedy-jobs": "testbed.routing.greedy_routes:greedy_jobs",
        "greedy-time": "testbed.routing.by_time:greedy_time",
        "edge-coloring": "testbed.routing.edge_coloring:edge_coloring",
        "annealing": "testbed.routing.annealing:annealing",
        "ilp": "testbed.routing.exact:ilp",
        "lexicographic": "testbed.routing.exact:lexicographic",
        "interleave": "testbed.routing.interleave:PLANNER",
        "joint": "testbed.routing.joint:PLANNER",
        "cassini": "testbed.routing.cassini:PLANNER",
        "crux": "testbed.routing.crux:PLANNER",
    },
    _as_policy,
)
"""To add one: a function, and a line here (docs/extending.md)."""


@dataclass(frozen=True)
class PolicyChoice:
    """A policy with its options, as a user asked for it."""

    label: str
    """NAME, or NAME,OPTION=VALUE..."""
    policy: Policy | Planner
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The label without what a case's label must not have: NAME OPTION=VALUE ..."""
        name, *settings = self.label.split(",")
        return " ".join([own_name(name), *(setting.replace(" ", "") for setting in settings)])

    def takes(self, option: str) -> bool:
        """Whether it has such an option."""
        return option in _option_names(self.policy)

    def at_most(self, option: str, value: float) -> PolicyChoice:
        """The same with no more than that of an option; as it is where it has no such option, or less by itself."""
        known = inspect.signature(_function(self.policy)).parameters.get(option)
        if known is None or self.options.get(option, known.default) <= value:
            return self
        return PolicyChoice(self.label, self.policy, {**self.options, option: value})

    def with_seed(self, seed: int) -> PolicyChoice:
        """The same with that seed."""
        return PolicyChoice(self.label, self.policy, {**self.options, "seed": seed})


@dataclass(frozen=True)
class Routed:
    """What a policy made of a problem."""

    choice: Ints
    """Per flow the number of its candidate."""
    seconds: float
    """Of the policy alone, by the wall clock."""
    remark: str = ""


def choose(text: str, directory: Path | None = None) -> PolicyChoice:
    """The policy that `text` asks for: NAME or FILE.py:NAME, then options as `,seed=3`; files relative to `directory`.

    Raises BadInput naming what is registered, or the option and what is expected of it.
    """
    name, *settings = text.split(",")
    given: dict[str, Any] = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key.strip():
            raise BadInput.of("--policy", text, setting, "OPTION=VALUE behind each comma")
        given[key.strip()] = yaml_tree.parse(value, "--policy", text)
    reference = in_file(name)
    try:
        content = None if reference is None else read_content(reference.file, directory or Path())
        policy = POLICIES.find(name, content)
        options = checked_options(_function(policy), _option_names(policy), given, name, ("--policy", f"{name},"))
    except Unusable as error:
        raise error.at("--policy", "policy") from error
    return PolicyChoice(text, policy, options)


def everywhere(text: str) -> str:
    """What `choose` takes, with the whole path of a file: a run may be in another directory."""
    name, *settings = text.split(",")
    reference = in_file(name)
    whole = name if reference is None else f"{Path(reference.file).resolve()}:{reference.name}"
    return ",".join([whole, *settings])


def _function(policy: Policy | Planner) -> Callable[..., Any]:
    return policy.plan if isinstance(policy, Planner) else policy


def _option_names(policy: Policy | Planner) -> list[str]:
    return list(inspect.signature(_function(policy)).parameters)[1:]


def policies_once(policies: Sequence[PolicyChoice]) -> Sequence[PolicyChoice]:
    """These. Raises BadInput for a policy that is there twice, with the same options."""
    words = [chosen.words for chosen in policies]
    for number, chosen in enumerate(policies):
        if chosen.words in words[:number]:
            raise BadInput.of("--policy", "policy", chosen.label, "every policy once")
    return policies


def plan_with(chosen: PolicyChoice, task: PlannerInput) -> PlannedCases:
    """What a planner makes of a plan; errors of a user's own as in `route`."""
    made = _called(chosen, task)
    if not isinstance(made, PlannedCases):
        expected = f"a planner of PlannedCases, not {type(made).__name__}"
        raise BadInput.of("--policy", "policy", chosen.label, expected)
    return made


def route(chosen: PolicyChoice, problem: RoutingProblem) -> Routed:
    """What the policy chooses, checked; a user's own that fails is bad input, and the line of the file is named."""
    begin = time.perf_counter()
    made = _called(chosen, problem)
    seconds = time.perf_counter() - begin
    choice, remark = (made.choice, made.remark) if hasattr(made, "choice") else (made, "")
    return Routed(_checked(chosen, problem, choice), seconds, remark)


def _called(chosen: PolicyChoice, subject: PlannerInput | RoutingProblem) -> Any:
    def refused(problem: str) -> BadInput:
        return BadInput.of("--policy", "policy", chosen.label, f"a policy that works ({problem})")

    given = _read_only(subject) if isinstance(subject, RoutingProblem) else subject
    with own_code(in_file(chosen.label.split(",")[0]), refused):
        return _function(chosen.policy)(given, **chosen.options)


def _read_only(problem: RoutingProblem) -> RoutingProblem:
    """The same problem, whose arrays nobody can change for the policies that come later."""
    views: dict[str, Any] = {}
    for column in dataclasses.fields(problem):
        value = getattr(problem, column.name)
        if isinstance(value, np.ndarray):
            views[column.name] = value.view()
            views[column.name].flags.writeable = False
    made = dataclasses.replace(problem, **views)
    made.__dict__["routes"] = Routes(*(each.copy() for each in problem.routes))  # put together once for all of them
    return made


def _checked(chosen: PolicyChoice, problem: RoutingProblem, choice: object) -> Ints:
    """The choice as an array. Raises BadInput when it is none."""
    try:
        found = np.asarray(choice)
        whole = found.astype(np.int64)
        good = found.shape == (problem.n_flows,) and bool(np.all(whole == found))
    except (TypeError, ValueError):
        good = False
    if not good:
        expected = f"a whole number for each of {problem.n_flows} flows"
        raise BadInput.of("--policy", chosen.label, choice, expected)
    wrong = np.flatnonzero((whole < 0) | (whole >= problem.choices))
    if len(wrong):
        flow = int(wrong[0])
        expected = f"route 0 to {int(problem.choices[flow]) - 1} for flow {flow}"
        raise BadInput.of("--policy", chosen.label, int(whole[flow]), expected)
    return whole
