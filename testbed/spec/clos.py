"""A two-layer Clos in two lines of a topology's file: spelt out into leaves with their hosts, spines, and links.

    datacenters:
      pod: {clos: {leaves: 4, spines: 2, hosts: 4, rate: 10 Gbit/s}}

becomes pod-leaf0 to pod-leaf3 with 4 nodes each, pod-spine0 and pod-spine1 without nodes, and a link from every leaf to
every spine. Links of the file itself name the leaves and spines that they end at.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from testbed.errors import BadInput
from testbed.spec.document import StrictModel, validate
from testbed.spec.quantity import bits_per_second, seconds


class ClosSpec(StrictModel):
    """Leaves with hosts, and spines that join them; every leaf has one link to every spine."""

    leaves: int = Field(ge=2, le=99, description="places with nodes")
    spines: int = Field(ge=1, le=98, description="places without nodes that join them")
    hosts: int = Field(ge=1, le=100, description="nodes of each leaf")
    rate: Annotated[float, bits_per_second(1e3, 100e9)] = Field(description="of every link")
    delay: Annotated[float, seconds(0, 10)] = Field(default=0.0, description="one way, of every link")


def spelt_out(document: dict[str, Any], source: str) -> dict[str, Any]:
    """A topology's document in which every `clos` is written as datacenters and links. Raises BadInput."""
    datacenters = document.get("datacenters")
    if not isinstance(datacenters, dict):
        return document
    found: dict[str, Any] = {}
    made: list[dict[str, Any]] = []
    for name, entry in datacenters.items():
        parts: dict[str, Any] = {name: entry}
        if isinstance(entry, dict) and "clos" in entry:
            parts, joined = _parts(str(name), entry, source)
            made += joined
        for part, value in parts.items():
            if part in found or (part != name and part in datacenters):
                raise BadInput.of(source, f"datacenters.{name}.clos", part, "a name that no other datacenter has")
            found[part] = value
    if not made:
        return document
    links = document.get("links", [])
    return {**document, "datacenters": found, "links": [*links, *made] if isinstance(links, list) else links}


def _parts(name: str, entry: dict[str, Any], source: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The datacenters and links that a Clos is made of."""
    at = f"datacenters.{name}"
    clos = validate(ClosSpec, entry["clos"], source, at=f"{at}.clos")
    for field, value in entry.items():
        if field not in ("clos", "inside"):
            raise BadInput.of(source, f"{at}.{field}", value, "clos alone, or with inside: hosts say how many nodes")
    inside = {"inside": entry["inside"]} if "inside" in entry else {}
    leaves = [f"{name}-leaf{number}" for number in range(clos.leaves)]
    spines = [f"{name}-spine{number}" for number in range(clos.spines)]
    written = {"rate": entry["clos"]["rate"], "delay": entry["clos"].get("delay", 0)}
    links = [{"between": [leaf, spine], **written} for leaf in leaves for spine in spines]
    return {leaf: {"nodes": clos.hosts, **inside} for leaf in leaves} | {spine: {"nodes": 0} for spine in spines}, links
