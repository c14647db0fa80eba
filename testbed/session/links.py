"""The links of a plan's network built and measured, without any training: asked against measured."""

from __future__ import annotations

from typing import Any

from testbed.lab.calibrate import calibrate, lines
from testbed.lab.gate import tell_notes
from testbed.lab.host_settings import HostPriority
from testbed.plan.network_state import NetworkState, planned
from testbed.plan.plan import Plan
from testbed.progress import Reporter
from testbed.session.building import built


def measure_links(
    plan: Plan, *, shaper: str, host_priority: HostPriority, beside_mininet: bool, reporter: Reporter
) -> dict[str, Any]:
    """The document of `testbed calibrate`. Call inside a sandbox. Raises MachineLacks or RunFailed."""
    with built(plan, reporter, shaper=shaper, host_priority=host_priority) as lab:
        with reporter.step("measuring links", total=len(lines(lab))) as step:
            checks = calibrate(lab, progress=step.advance)
        tell_notes(lab, checks, reporter.say)
    document: dict[str, Any] = {
        "topology": plan.network.name,
        "shaper": lab.shaper_name,
        "links": [check.as_json() for check in checks],
    }
    if beside_mininet:
        document["mininet"] = _beside(planned(plan.network), reporter)
    return document


def _beside(network: NetworkState, reporter: Reporter) -> list[dict[str, Any]]:
    """Plain Mininet links with the same delay and rate."""
    from testbed.lab.mininet_link import measure

    found = []
    with reporter.step("measuring plain Mininet", total=len(network.links) // 2) as step:
        for asked in network.links[::2]:
            step.detail(asked.label)
            found.append(measure(asked).as_json())
            step.advance()
    return found
