"""How ranks on several machines come together: each says what it is, rank 0 judges, and all connect to it.

What ranks say of themselves is JSON in torchrun's store: nothing of another machine is unpickled before it has shown
the key that rank 0 has put there. Like torch.distributed itself this is for a network whose machines trust each other.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from multiprocessing.connection import Connection
from typing import Any

from testbed.errors import BadInput, RunFailed, listed

COME_S = 300.0
"""For all ranks to come: each machine imports torch first, and torchrun waits for slow ones as long."""
CONNECT_S = 60.0
_HEADER_S = 5.0
_LOOK_S = 0.1
_LEAVE_S = 10.0
"""For all ranks to read a refusal before rank 0 ends, and perhaps the store with it."""

_KEEPER, _WORKER = range(2)
_HEADER = struct.Struct("!32sIB")
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 6))
"""A machine that is gone without a word is noticed after three quarters of a minute."""
_UNANSWERED_MS = 45_000


@dataclass(frozen=True)
class Introduction:
    """What a rank says of itself."""

    rank: int
    host: str
    version: str
    torch: str
    plan: str
    """sha256 of its plan's canonical text; empty where it has none that can be read."""
    n_ranks: int
    """Of its plan."""
    interface: str
    address: str
    cores: int
    machine: str
    clock: str
    tcp: str
    """Its congestion control."""
    trouble: str = ""
    """Why it cannot take part."""

    def refusal(self) -> BadInput:
        """What there is to say of its trouble."""
        return BadInput(f"rank {self.rank} ({self.host}): {self.trouble}")


@dataclass(frozen=True)
class RankConnections:
    """Rank 0's two connections to a rank, and what that said of itself."""

    introduction: Introduction
    keeper: Connection
    worker: Connection


def introduce(store: Any, mine: Introduction) -> None:
    """Say what this rank is."""
    store.set(f"rank/{mine.rank}", json.dumps(asdict(mine)))


def introductions(store: Any, world_size: int) -> list[Introduction]:
    """Of all ranks, in order, once they have come. Raises RunFailed naming those that have not in time, and BadInput as
    soon as one is in trouble: the others may never come.
    """
    until, come = time.monotonic() + COME_S, dict[int, Introduction]()
    while True:
        missing = [rank for rank in range(world_size) if rank not in come]
        for rank in (rank for rank in missing if store.check([f"rank/{rank}"])):
            come[rank] = Introduction(**json.loads(store.get(f"rank/{rank}")))
            if come[rank].trouble:
                raise come[rank].refusal()
        if len(come) == world_size:
            return [come[rank] for rank in range(world_size)]
        if time.monotonic() > until:
            still = listed([rank for rank in missing if rank not in come])
            raise RunFailed(f"rank {still} did not come within {COME_S:g} s")
        time.sleep(_LOOK_S)


def require_alike(come: Sequence[Introduction]) -> None:
    """Raises BadInput where a rank is in trouble, or has another plan, testbed or torch than rank 0."""
    first = come[0]
    for one in come:
        if one.trouble:
            raise one.refusal()
    for one in come:
        where = f"rank {one.rank} ({one.host})"
        if one.n_ranks != len(come):
            raise of_another_size(len(come), one.n_ranks)
        for name, field in (("testbed", "version"), ("torch", "torch"), ("plan.json", "plan")):
            found, wanted = getattr(one, field), getattr(first, field)
            if found != wanted:
                expected = f"{wanted[:12]}, as rank 0 ({first.host}) has it: the same on every machine"
                raise BadInput.of(where, name, found[:12], expected)
        if len({each.machine for each in come}) > 1 and ip_address(one.address).is_loopback:
            expected = "one that other machines reach: MASTER_ADDR by number, or --interface NAME"
            raise BadInput.of(where, "address", one.address, expected)


def of_another_size(world_size: int, n_ranks: int) -> BadInput:
    """The error where there are not as many processes as the plan has ranks."""
    return BadInput.of("environment", "WORLD_SIZE", world_size, f"{n_ranks}, a process for every rank of the plan")


def refuse(store: Any, world_size: int, error: BaseException, code: int) -> None:
    """Have all ranks end with the error; returns when they have heard it, or after some seconds."""
    store.set("answer", json.dumps({"error": str(error), "code": code}))
    until = time.monotonic() + _LEAVE_S
    while store.add("heard", 0) < world_size and time.monotonic() < until:
        time.sleep(_LOOK_S)


@dataclass(frozen=True)
class Invitation:
    """Where rank 0 is, or why there is nothing to connect for."""

    address: str = ""
    port: int = 0
    key: str = ""
    error: str = ""
    code: int = 0


def give_up(store: Any, world_size: int, mine: Introduction) -> None:
    """Have the others hear of the trouble that this rank is in, whatever they are waiting for."""
    store.add("heard", 1)
    if mine.rank:
        introduce(store, mine)
    else:
        refuse(store, world_size, mine.refusal(), BadInput.exit_code)


def answer(store: Any) -> Invitation:
    """What rank 0 has answered. Raises RunFailed when it has not in time."""
    until = time.monotonic() + COME_S + CONNECT_S
    while not store.check(["answer"]):
        if time.monotonic() > until:
            raise RunFailed(f"rank 0 did not answer within {COME_S + CONNECT_S:g} s")
        time.sleep(_LOOK_S)
    found = Invitation(**json.loads(store.get("answer")))
    if found.error:
        store.add("heard", 1)
    return found


def connect(invitation: Invitation, rank: int) -> tuple[Connection, Connection]:
    """The connections of this rank's keeper, and of its worker, to rank 0. Raises RunFailed."""
    found = []
    for role in (_KEEPER, _WORKER):
        try:
            line = socket.create_connection((invitation.address, invitation.port), timeout=CONNECT_S)
            line.sendall(_HEADER.pack(bytes.fromhex(invitation.key), rank, role))
        except OSError as error:
            there = f"rank 0 at {invitation.address}, port {invitation.port}"
            raise RunFailed(f"{there} cannot be reached: {error}") from error
        found.append(_lasting(line))
    return found[0], found[1]


def invite(store: Any, come: Sequence[Introduction]) -> list[RankConnections]:
    """Let all ranks connect; returns their connections, in order. Raises RunFailed naming those that do not."""
    key, lines = secrets.token_bytes(32), dict[tuple[int, int], Connection]()
    place, until = come[0].address, time.monotonic() + CONNECT_S
    with socket.create_server((place, 0), family=socket.AF_INET6 if ":" in place else socket.AF_INET) as listener:
        port = listener.getsockname()[1]
        store.set("answer", json.dumps(asdict(Invitation(place, port, key.hex()))))
        while len(lines) < 2 * len(come):
            listener.settimeout(max(0.01, until - time.monotonic()))
            try:
                line, _ = listener.accept()
            except TimeoutError:
                missing = [one.rank for one in come if (one.rank, _WORKER) not in lines]
                raise RunFailed(f"rank {listed(missing)} did not connect within {CONNECT_S:g} s") from None
            if (who := _who(line, key)) is not None:
                lines[who] = _lasting(line)
    return [RankConnections(one, lines[one.rank, _KEEPER], lines[one.rank, _WORKER]) for one in come]


def _who(line: socket.socket, key: bytes) -> tuple[int, int] | None:
    """Rank and role of who has connected; None, and it is hung up, where that is nobody of ours."""
    line.settimeout(_HEADER_S)
    got = b""
    try:
        while len(got) < _HEADER.size and (more := line.recv(_HEADER.size - len(got))):
            got += more
    except OSError:
        got = b""
    if len(got) == _HEADER.size:
        theirs, rank, role = _HEADER.unpack(got)
        if hmac.compare_digest(theirs, key):
            return rank, role
    line.close()
    return None


def _lasting(line: socket.socket) -> Connection:
    """A connection that notices when the other machine is gone, and sends every word at once."""
    line.settimeout(None)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)
    for option, value in _KEEPALIVE:
        line.setsockopt(socket.IPPROTO_TCP, option, value)
    return Connection(line.detach())
