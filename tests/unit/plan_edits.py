"""Every edit of one field of a plan.json, and whether the files that plans are made from could say the same."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from damage import nodes

from testbed.errors import BadInput
from testbed.plan.plan import Plan
from testbed.planning import file
from testbed.spec.document import validate
from testbed.spec.quantity import SI_UNITS
from testbed.spec.topology import Topology

VALUES: tuple[Any, ...] = (
    *(
        -1,
        0,
        1,
        2,
        1.5,
        -0.5,
        1e300,
        1e-300,
        10**9,
        2**62,
        True,
        False,
        None,
        "",
        "x",
        "../x",
        [],
        {},
        [[]],
        [1],
        {"x": 1},
    ),
)
_GONE = object()
_ALIKE = 2
"""Of entries of one list, so many stand for all."""


class Edit(NamedTuple):
    """One field changed, or taken out."""

    field: str
    value: object
    text: str


def edits(tree: Any) -> Iterator[Edit]:
    """All of them, of a plan as JSON has it."""
    seen: dict[tuple[Any, ...], int] = {}
    for place in nodes(tree):
        pattern = tuple(0 if isinstance(key, int) else key for key in place)
        seen[pattern] = seen.get(pattern, 0) + 1
        if seen[pattern] > _ALIKE:
            continue
        for value in (*VALUES, _GONE):
            changed = copy.deepcopy(tree)
            parent = changed
            for key in place[:-1]:
                parent = parent[key]
            if value is _GONE:
                del parent[place[-1]]
            else:
                parent[place[-1]] = value
            yield Edit(".".join(map(str, place)), "gone" if value is _GONE else value, json.dumps(changed))


def fault(edit: Edit) -> str:
    """What is wrong with how an edited plan is read: a traceback, or what no topology could say; "" if nothing."""
    try:
        plan = file.from_json(edit.text, "plan.json")
    except BadInput as error:
        return "" if str(error).startswith("plan.json: ") else f"the file is not named: {error}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        return f"traceback: {type(error).__name__}: {error}"
    return refused_as_topology(plan)


def refused_as_topology(plan: Plan) -> str:
    """Why a topology with the same links would be refused; "" where it is not."""
    inside = {card.target: {"delay": card.delay_s, "rate": card.rate_bps} for card in plan.network.cards}
    if any(card.queue_bytes or card.jitter_s or card.loss for card in plan.network.cards):
        return "network cards have no queue, jitter or loss"
    sites: dict[str, Any] = {name: {"nodes": 0} for name in plan.network.switches}
    for node in plan.network.nodes:
        site = sites.setdefault(node.datacenter, {"nodes": 0})
        site["nodes"] += 1
        if node.datacenter in inside:
            site["inside"] = inside[node.datacenter]
    links = []
    for there, back in zip(plan.network.directions[::2], plan.network.directions[1::2], strict=True):
        sides = {}
        for side, one in (("forward", there), ("reverse", back)):
            sides[side] = {"delay": one.delay_s, "rate": one.rate_bps, "jitter": one.jitter_s, "loss": one.loss}
            if one.queue_bytes:
                sides[side]["queue"] = one.queue_bytes
        links.append({"between": [there.source, there.target], "name": there.link, **sides})
    document = {"name": plan.network.name, "datacenters": sites, "links": links}
    try:
        validate(Topology, document, "the topology", SI_UNITS)
    except BadInput as error:
        return f"accepted, but {error}"
    costs = plan.host_costs
    if not all(0 <= value <= 1e6 for value in vars(costs).values()):
        return f"accepted, but {costs}"
    return ""
