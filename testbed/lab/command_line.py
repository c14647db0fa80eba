"""Mininet's command line on a lab: links that come back with their routes, iperf3, and commands from a pipe."""

from __future__ import annotations

import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mininet.cli import CLI
from mininet.log import error, lg, output, setLogLevel
from mininet.util import quietRun

from testbed.errors import RunFailed, TestbedError, in_words
from testbed.lab.mininet_link import iperf3
from testbed.lab.netlink import Netlink
from testbed.lab.probes import Ends
from testbed.units import show_rate

if TYPE_CHECKING:
    from mininet.link import Intf

    from testbed.lab.lab import Lab

_LOOK_MS = 100
_LOCAL_TABLE = 255
_FROM_KERNEL = 2  # RTPROT_KERNEL: what comes back by itself
_PERMANENT = 0x80  # NUD_PERMANENT


@dataclass(frozen=True)
class _Lost:
    """What an interface loses when it goes down: requests that bring it back."""

    routes: tuple[dict[str, Any], ...]
    neighbours: tuple[dict[str, Any], ...]


def open_shell(lab: Lab) -> None:
    """Read commands until the user leaves, or the input ends. Node names are commands: paris/0 ping warsaw/1."""
    setLogLevel("info")
    for handler in lg.handlers:
        handler.setStream(sys.stdout)  # what commands print is the result
    _Shell(lab)


class _Shell(CLI):  # type: ignore[misc]
    """Mininet's, where it fits: names with slashes, and what it would do to a lab that is routed."""

    identchars = CLI.identchars + "-/"  # or "paris/0 ip addr" would be the command "paris"

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._lost: dict[tuple[str, str], _Lost] = {}
        """(container, interface) of what was taken down here."""
        if not sys.stdin.isatty():
            self.prompt = ""
        super().__init__(lab.net)

    def do_link(self, line: str) -> None:
        """Take all links between two nodes down, or up again with the routes that they had.

        Usage: link paris warsaw down
        """
        words = line.split()
        if len(words) != 3 or words[2] not in ("up", "down"):
            error("usage: link NODE NODE up|down\n")
            return
        *names, wanted = words
        unknown = [name for name in names if name not in self.mn]
        links = [] if unknown else self.mn.linksBetween(self.mn[names[0]], self.mn[names[1]])
        if not links:
            error(f"no node {unknown[0]}\n" if unknown else f"no link between {names[0]} and {names[1]}\n")
            return
        for link in links:
            for port in (link.intf1, link.intf2):
                self._take_down(port) if wanted == "down" else self._bring_up(port)

    def _take_down(self, port: Intf) -> None:
        with self._lab.netlink(port.node) as netlink:
            index = netlink.index(port.name)
            self._lost.setdefault((port.node.name, port.name), _what_goes_with(netlink, index))
            netlink.ask("link", "set", index=index, state="down")

    def _bring_up(self, port: Intf) -> None:
        lost = self._lost.pop((port.node.name, port.name), None)
        with self._lab.netlink(port.node) as netlink:
            netlink.ask("link", "set", index=netlink.index(port.name), state="up")
            for neighbour in lost.neighbours if lost else ():
                netlink.ask("neigh", "replace", **neighbour)
            for route in lost.routes if lost else ():
                netlink.ask("route", "replace", **route)

    def do_iperf(self, line: str) -> None:
        """TCP between two nodes, by iperf3: what it carries over two seconds, after two to settle.

        Usage: iperf paris/0 warsaw/1; without names: the first and the last node
        """
        names = line.split() or [self._lab.nodes[0], self._lab.nodes[-1]]
        if len(names) != 2 or any(name not in self.mn for name in names):
            error("usage: iperf NODE NODE\n")
            return
        source, target = names
        ends = Ends(self.mn[source], self._lab.address(source), self.mn[target], self._lab.address(target))
        try:
            payload_bps, retransmits = iperf3(ends)
        except TestbedError as reason:
            error(f"{reason}\n")
            return
        output(f"{source} -> {target}: {show_rate(payload_bps)} of payload, {retransmits} segments sent again\n")

    def do_iperfudp(self, _line: str) -> None:
        """Not here: NODE iperf3 --udp does it."""
        error("not here; start `NODE iperf3 --server --daemon` and `NODE iperf3 --udp --client NODE`\n")

    def do_source(self, line: str) -> bool:
        """Read commands from a file; Mininet's own ends in a traceback where it cannot be read.

        Usage: source FILE
        """
        try:
            commands = Path(line.strip()).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as reason:
            error(f"{in_words(reason)}\n" if line.strip() else "usage: source FILE\n")
            return False
        return any(self.onecmd(command) for command in commands)  # until one of them leaves

    def do_sh(self, line: str) -> None:
        """A command of this machine, in the lab's namespaces: sh ip -brief link."""
        subprocess.call(line, shell=True, stdin=None if self.isatty() else subprocess.DEVNULL)  # noqa: S602 - the user's own

    def waitForNode(self, node: Any) -> None:  # noqa: N802 - Mininet's name
        """Print what a node's command prints until it ends. Keys go to it from a keyboard only: what comes through a
        pipe are further commands. Raises RunFailed where the node's shell has ended, and the container with it.
        """
        poller, keyboard = select.poll(), self.stdin.fileno() if self.isatty() else None
        poller.register(node.stdout, select.POLLIN)
        if keyboard is not None:
            quietRun("stty -icanon min 1")
            poller.register(keyboard, select.POLLIN)
        while node.waiting:
            try:
                ended = node.ended()  # looked at first: what it said before its end is read below
                ready = {descriptor for descriptor, _ in poller.poll(_LOOK_MS)}
                if keyboard in ready:
                    node.write(self.stdin.read(1))
                if node.stdout.fileno() in ready:
                    output(node.monitor())
                elif ended is not None:
                    raise RunFailed(f"container {node.name} has ended: {ended}")
            except KeyboardInterrupt:
                node.sendInt()


def _what_goes_with(netlink: Netlink, index: int) -> _Lost:
    """What the kernel forgets when an interface goes down, next hops before what is reached by them."""
    routes = [
        message
        for message in netlink.ask("get_routes", family=2)
        if message.get_attr("RTA_OIF") == index
        and message.get_attr("RTA_TABLE") != _LOCAL_TABLE
        and message["proto"] != _FROM_KERNEL
    ]
    routes.sort(key=lambda message: -int(message["scope"]))
    neighbours = [m for m in netlink.ask("get_neighbours", ifindex=index, family=2) if m["state"] == _PERMANENT]
    return _Lost(tuple(_route(message, index) for message in routes), tuple(_neighbour(m, index) for m in neighbours))


def _route(message: Any, index: int) -> dict[str, Any]:
    """The request that makes a route that the kernel has shown."""
    request = {
        "dst": f"{message.get_attr('RTA_DST') or '0.0.0.0'}/{message['dst_len']}",
        "oif": index,
        "table": message.get_attr("RTA_TABLE"),
        "scope": message["scope"],
        "proto": message["proto"],
    }
    for name, attribute in (("gateway", "RTA_GATEWAY"), ("prefsrc", "RTA_PREFSRC"), ("priority", "RTA_PRIORITY")):
        if (value := message.get_attr(attribute)) is not None:
            request[name] = value
    if (metrics := message.get_attr("RTA_METRICS")) is not None:
        request["metrics"] = {name.removeprefix("RTAX_").lower(): value for name, value in metrics["attrs"]}
    return request


def _neighbour(message: Any, index: int) -> dict[str, Any]:
    return {
        "ifindex": index,
        "dst": message.get_attr("NDA_DST"),
        "lladdr": message.get_attr("NDA_LLADDR"),
        "state": _PERMANENT,
    }
