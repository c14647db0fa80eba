"""Plans of benchmarks: drawn documents, written as the files that a user would write, and loaded from them."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from testbed.errors import BadInput
from testbed.plan.plan import Plan
from testbed.planning.resolve import generate, load_plan, make_plan, with_cases
from testbed.planning.schedules import choose, make, with_selected
from testbed.schedule.registry import FAMILIES
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import Workload
from testbed.vm import command

Document = Mapping[str, Any]


def quick_schedules(*, search: bool = False) -> list[str]:
    """Names of those that need no solver; `search` takes a while, and is among them if asked for."""
    return [name for name, family in FAMILIES.items() if not family.solver and (search or name != "search")]


def slots(draw: random.Random, stages: int, slot_s: float, least: float, most: float) -> dict[str, list[str]]:
    """Pacing: of every stage F, I and W of their own, from `least` to `most` slots."""
    return {kind: [f"{1e3 * slot_s * draw.uniform(least, most):.3f} ms" for _ in range(stages)] for kind in "FIW"}


def joined(
    draw: random.Random, sites: Sequence[str], ranks: int
) -> tuple[str, dict[str, dict[str, int]], list[tuple[str, str]]]:
    """A chain, a ring or a star of datacenters, which it is, with a node and more in each, and the pairs with links."""
    nodes = [1] * len(sites)
    for _ in range(ranks - len(sites)):
        nodes[draw.randrange(len(sites))] += 1
    shape = draw.choice(("chain", "ring", "star") if len(sites) > 2 else ("chain",))
    pairs = [(sites[0], site) for site in sites[1:]] if shape == "star" else list(pairwise(sites))
    pairs += [(sites[-1], sites[0])] if shape == "ring" else []
    return shape, {site: {"nodes": n} for site, n in zip(sites, nodes, strict=True)}, pairs


def sources(out: Path, name: str) -> tuple[Path, Path]:
    """Where topology and workload of a plan lie."""
    return out / f"{name}.topology.yaml", out / f"{name}.workload.yaml"


def write(out: Path, name: str, topology: Document, workload: Document) -> tuple[Path, Path]:
    """Topology and workload of a plan, written."""
    out.mkdir(parents=True, exist_ok=True)
    files = sources(out, name)
    for path, document in zip(files, (topology, workload), strict=True):
        path.write_text(yaml.safe_dump(dict(document), sort_keys=False), encoding="utf-8")
    return files


def workload_of(out: Path, name: str) -> dict[str, Any]:
    """The workload of a plan, as it was written."""
    found: dict[str, Any] = yaml.safe_load(sources(out, name)[1].read_text(encoding="utf-8"))
    return found


def made(network: Document, *jobs: Workload) -> Plan:
    """The plan of a topology, as its file would say it, without cases. Raises BadInput."""
    return make_plan(validate(Topology, dict(network), str(network["name"])), *jobs)


def with_every(plan: Plan, names: Iterable[str] = ()) -> Plan:
    """A plan with these of its schedules made (none: all that it lists). Raises BadInput where one does not fit."""
    return with_selected(plan, [make(plan, choose(plan, list(names)), strict=True)])


def with_schedules(plan: Plan, name: str) -> Plan:
    """A plan with its schedules made; those that do not fit are left out and said on stderr."""
    made, choices = {}, []
    for choice in choose(plan):
        try:
            made[choice.label] = generate(plan, choice)
            choices.append(choice)
        except BadInput as error:
            print(f"{name}: {error}", file=sys.stderr)
    return with_cases(plan, choices, made)


def training(
    out: Path, name: str, topology: Document, workload: Document, settings: Sequence[str] = ()
) -> command.GuestTraining:
    """A plan written, loaded and with its schedules made; its run goes to `out`/`name`."""
    files = write(out, name, topology, workload)
    return command.GuestTraining(with_schedules(load_plan(*files, settings=settings), name), out / name)
