"""What torchrun tells each process that it starts, and what the process finds out of its own machine."""

from __future__ import annotations

import fcntl
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from testbed.errors import BadInput
from testbed.train.peer_store import TCP

_SIOCGIFADDR = 0x8915
_LONGEST_NAME = 15
"""Characters of an interface's name."""
_LOOK_S = 0.2


class TorchrunEnvironment(NamedTuple):
    """Who this process is among those that torchrun has started."""

    rank: int
    world_size: int
    host: str
    """Of rank 0 ..."""
    port: int
    run_id: str
    restart: str
    """How often torchrun has started all anew."""
    has_store: bool
    """Whether torchrun holds the store at this place; else rank 0 has to."""

    @property
    def store(self) -> str:
        """Where ranks find each other, as peer_store.connected has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{TCP}{host}:{self.port}/testbed/{self.run_id}/{self.restart}"


class LocalAddress(NamedTuple):
    """Where other machines reach this one."""

    interface: str
    address: str


def of_environment(variables: Mapping[str, str]) -> TorchrunEnvironment:
    """Raises BadInput naming the variable that is missing, or no number."""
    rank, world_size, port = (_number(variables, name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    host = variables.get("MASTER_ADDR", "")
    if not host:
        raise _missing("MASTER_ADDR", "nothing")
    run_id, restart = (variables.get(f"TORCHELASTIC_{name}", "0") for name in ("RUN_ID", "RESTART_COUNT"))
    has_store = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return TorchrunEnvironment(rank, world_size, host, port, run_id, restart, has_store)


def answers(host: str, port: int, within_s: float) -> bool:
    """Whether somebody listens there, now or soon: torch's store shows where it is in the code when nobody does."""
    until = time.monotonic() + within_s
    while (left_s := until - time.monotonic()) > 0:
        with suppress(OSError), socket.create_connection((host, port), timeout=left_s):
            return True
        time.sleep(_LOOK_S)
    return False


def _number(variables: Mapping[str, str], name: str) -> int:
    value = variables.get(name, "nothing")
    if not value.isdecimal():
        raise _missing(name, value)
    return int(value)


def _missing(name: str, value: str) -> BadInput:
    return BadInput.of("environment", name, value, "what torchrun sets: torchrun ... -m testbed wan plan.json")


def local_address(host: str, port: int, interface: str | None) -> LocalAddress:
    """The address from which this machine reaches rank 0, or that of an interface by name. Raises BadInput."""
    if interface is not None:
        address = _addresses().get(interface)
        if address is None:
            known = ", ".join(_addresses())
            raise BadInput.of("testbed wan", "--interface", interface, f"one with an IPv4 address ({known})")
        return LocalAddress(interface, address)
    address = _source_towards(host, port)
    found = [name for name, theirs in _all_addresses() if theirs == address]
    if not found:
        raise BadInput.of("testbed wan", "--interface", "nothing", f"the interface that has {address}: none is found")
    return LocalAddress(found[0], address)


def _source_towards(host: str, port: int) -> str:
    """The source address of packets to another machine; nothing is sent. Raises BadInput."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, number) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise BadInput.of("environment", "MASTER_ADDR", host, f"an address that can be reached ({error})") from error


def _all_addresses() -> list[tuple[str, str]]:
    return [*_addresses().items(), *_addresses_6()]


def _addresses() -> dict[str, str]:
    """The first IPv4 address of every interface that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            asked = struct.pack("256s", name.encode()[:_LONGEST_NAME])
            with suppress(OSError):  # it has none
                found[name] = socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)[20:24])
    return found


def _addresses_6() -> list[tuple[str, str]]:
    table = Path("/proc/net/if_inet6")
    lines = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    return [(line[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line[0]))) for line in lines]


def boot_name() -> str:
    """The same for all processes of a machine, until it is booted again."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def clock_name() -> str:
    """The same for all processes that have one monotonic clock: those of a machine, unless a time namespace differs."""
    namespace = Path("/proc/self/ns/time")
    return f"{boot_name()} {namespace.readlink() if namespace.exists() else ''}"


def congestion_control() -> str:
    """What TCP goes by on this machine, such as cubic."""
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
