"""What this machine can do for a lab, found by trying each thing, never by guessing from versions.

What a check needs is imported in the check: without Mininet or pyroute2 it is to say so, not to fail.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from testbed import extras
from testbed.errors import MachineLacks, TestbedError
from testbed.lab import capabilities, privileges
from testbed.lab import namespaces as ns
from testbed.lab.privileges import Privilege
from testbed.plan.framing import MTU

_TCP_MEM_BYTES = 512 * 2**20
"""With less TCP throttled at 1 Gbit/s over 50 ms, with this much it did not (docs/how-true.md)."""

_PROBE_S = 10

NOT_TRIED = "it takes namespaces"


@dataclass(frozen=True)
class FeatureCheck:
    """One feature: whether it works, what was seen, the one command that adds it ("" when there is nothing to do).

    `needed` is False for what a lab can do without; `otherwise` says how, where that is not plain.
    """

    name: str
    ok: bool
    detail: str
    remedy: str
    needed: bool = True
    otherwise: str = ""
    tried: bool = True
    """False where it depends on a right that this process has not."""


@dataclass(frozen=True)
class _Probe:
    name: str
    try_it: Callable[[], str]
    remedy: str
    needed: bool = True
    otherwise: str = ""
    in_namespace: bool = False
    """Whether it is tried in namespaces, which not everybody may make."""


def examine() -> list[FeatureCheck]:
    """Try every feature. Takes about a second; changes nothing outside namespaces that end with the attempt.

    Of a user that may make user namespaces, in one. Of who may make none, what takes namespaces is not tried.
    """
    try:
        privilege = privileges.require(capabilities.OF_LABS)
    except MachineLacks as lack:
        return _without_namespaces(str(lack))
    if privilege is Privilege.ROOT:
        return [_find(probe) for probe in _PROBES]
    said = privileges.in_user_namespace(lambda: json.dumps([asdict(_find(probe)) for probe in _PROBES])) or "[]"
    first, *others = (FeatureCheck(**finding) for finding in json.loads(said))
    return [replace(first, detail=f"user {os.geteuid()}, root of a user namespace of its own"), *others]


def _without_namespaces(why: str) -> list[FeatureCheck]:
    reason, _, remedy = why.rpartition("; ")
    right = FeatureCheck(_PROBES[0].name, False, reason or why, remedy or _PROBES[0].remedy)
    others = (
        FeatureCheck(probe.name, False, NOT_TRIED, "", probe.needed, tried=False)
        if probe.in_namespace
        else _find(probe)
        for probe in _PROBES[1:]
    )
    return [right, *others]


def ways(findings: Sequence[FeatureCheck]) -> dict[str, str]:
    """By clock, as whom this process may train here, or what stands against it; `findings` with those of guests."""
    failed = [finding.name for finding in findings if finding.needed and finding.tried and not finding.ok]
    shaped = any(finding.ok for finding in findings if finding.name in ("netem", "tap"))
    found = {"real clock": f"no: {', '.join(failed)}" if failed or not shaped else _as_whom(capabilities.OF_LABS)}
    kernel = next((finding for finding in findings if finding.name == "time-travel"), None)
    if kernel is not None:
        lacking = kernel.name if kernel.tried else findings[0].name
        found["virtual clock"] = _as_whom(capabilities.OF_GUESTS) if kernel.ok else f"no: {lacking}"
    return found


def _as_whom(needed: Sequence[capabilities.Capability]) -> str:
    if privileges.require(needed) is Privilege.ROOT:
        return "yes, as root"
    who = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    plain = privileges.require(needed) is Privilege.PLAIN_PROCESS
    return f"yes, as {who}, as a plain process" if plain else f"yes, as {who}, in a user namespace"


def usable(findings: list[FeatureCheck]) -> bool:
    """Whether a lab can be built: everything that is needed works."""
    return all(finding.ok for finding in findings if finding.needed)


def _find(probe: _Probe) -> FeatureCheck:
    try:
        detail = probe.try_it()
    except Exception as error:  # noqa: BLE001 - any failure is the finding
        detail = str(error) if isinstance(error, TestbedError) else f"{type(error).__name__}: {error}"
        return FeatureCheck(probe.name, False, detail, probe.remedy, probe.needed, probe.otherwise)
    return FeatureCheck(probe.name, True, detail, "", probe.needed)


class _MissingError(TestbedError):
    """A probe's own way to say no."""


def _in_child(body: Callable[[int], None]) -> None:
    """Run `body` in a forked child, so that what it unshares ends with it. Raises _MissingError with its error.

    `body` is given the descriptor by which that is told.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            body(write)
        except BaseException as error:  # noqa: BLE001 - reported through the pipe
            os.write(write, f"{error}".encode()[:4000])
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    if os.waitpid(pid, 0)[1] != 0:
        raise _MissingError(said or "the attempt died")


def _root() -> str:
    if lacking := capabilities.lacking(capabilities.OF_LABS):
        raise _MissingError(capabilities.container_remedy(lacking))
    with ns.scratch_network():
        pass
    return "root, may make network namespaces"


def _namespaces() -> str:
    def body(_told_by: int) -> None:
        ns.unshare(ns.CLONE_NEWNS | ns.CLONE_NEWPID | ns.CLONE_NEWIPC | ns.CLONE_NEWUTS | ns.CLONE_NEWNET)
        ns.mount("none", "/", "none", ns.MS_REC | ns.MS_PRIVATE)
        pid = os.fork()
        if pid == 0:
            try:
                ns.mount("probe", "/proc", "proc")
                os._exit(0 if os.getpid() == 1 else 2)
            except OSError:
                os._exit(3)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code != 0:
            raise _MissingError(
                {2: "no PID namespace", 3: "cannot mount /proc in a PID namespace"}.get(code, str(code))
            )

    _in_child(body)
    return "network, mount, PID, IPC and UTS namespaces with their own /proc"


def _run(*command: str) -> str:
    found = shutil.which(command[0])
    if found is None:
        raise _MissingError(f"{command[0]} is not installed")
    done = subprocess.run(
        [found, *command[1:]], capture_output=True, text=True, timeout=_PROBE_S, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise _MissingError(f"{' '.join(command)}: exit code {done.returncode}: {done.stdout}{done.stderr}".strip())
    return done.stdout.strip()


def _mnexec() -> str:
    _run("mnexec", "-n", "true")
    return "mnexec starts a command in new namespaces"


def _util_linux() -> str:
    _run("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--", "true")
    if shutil.which("nsenter") is None:
        raise _MissingError("nsenter is not installed")
    return "unshare and nsenter"


def _mininet() -> str:
    importlib.import_module("mininet.net")
    return f"Mininet {importlib.import_module('mininet.net').VERSION} imports"


def _veth() -> str:
    from testbed.lab.netlink import Netlink

    with ns.scratch_network(), Netlink(None, "scratch namespace") as netlink:
        netlink.ask("link", "add", kind="veth", ifname="probe0", mtu=MTU, peer={"ifname": "probe1", "mtu": MTU})
        netlink.ask("link", "set", index=netlink.index("probe0"), state="up", gso_max_size=MTU, gso_max_segs=1)
    return f"veth pair, MTU {MTU}, limited GSO"


def _tap() -> str:
    from testbed.lab.shaping.relay import open_tap

    with ns.scratch_network():
        os.close(open_tap("probe0"))
    return "TAP with vnet headers and TCP segmentation"


def _unless(lacks: str | None, works: str) -> str:
    if lacks is not None:
        raise _MissingError(lacks)
    return works


def _taken(what: str, refused: str | None, works: str) -> str:
    return _unless(refused and f"the kernel refuses {what}: {refused.rpartition('was refused: ')[2]}", works)


def _netem() -> str:
    from testbed.lab.shaping import netem

    return _taken("a netem qdisc", netem.available(), "sch_netem takes delay, rate and limit")


def _police() -> str:
    from testbed.lab.shaping import netem

    return _taken("a policer", netem.no_room_in_bytes(), "police bounds queues in bytes before netem")


def _tbf() -> str:
    from testbed.lab.shaping import tbf

    return _taken("a tbf qdisc", tbf.available(), "sch_tbf takes rate, burst and limit")


def _multipath() -> str:
    from testbed.lab.netlink import Netlink

    with ns.scratch_network(), Netlink(None, "scratch namespace") as netlink:
        netlink.ask("link", "set", index=1, state="up")
        for number in (1, 2):
            netlink.ask("link", "add", kind="veth", ifname=f"probe{number}", peer={"ifname": f"peer{number}"})
            netlink.ask("link", "set", index=netlink.index(f"peer{number}"), state="up")
            netlink.ask("link", "set", index=netlink.index(f"probe{number}"), state="up")
            netlink.ask("addr", "add", index=netlink.index(f"probe{number}"), address=f"10.0.{number}.1", prefixlen=24)
        hops = [{"gateway": f"10.0.{number}.2", "hops": 0} for number in (1, 2)]
        netlink.ask("route", "add", dst="10.9.0.0/16", multipath=hops)
        netlink.ask("route", "add", dst="10.8.0.0/16", gateway="10.0.1.2", metrics={"initcwnd": 100, "initrwnd": 100})
    return "routes with several next hops and with initial windows"


def _ping() -> str:
    from testbed.lab.netlink import Netlink

    with ns.scratch_network():
        with Netlink(None, "scratch namespace") as netlink:
            netlink.ask("link", "set", index=1, state="up")
        _run("ping", "-c", "1", "-W", "2", "127.0.0.1")
    return "ping answers in a scratch namespace"


def _iperf3() -> str:
    return _run("iperf3", "--version").splitlines()[0]


def _isolation() -> str:
    from testbed.lab import confinement

    _in_child(lambda told_by: _require(confinement.lacks(told_by)))
    return f"workers are user {confinement.WORKER_USER} without capabilities, on read-only files"


def _limits() -> str:
    from testbed.lab import cgroups

    return _unless(
        cgroups.lacks((cgroups.MEMORY, cgroups.PROCESSORS)), "nodes may have limits of memory and processors"
    )


def _require(lacks: str | None) -> None:
    _unless(lacks, "")


def _sched_fifo() -> str:
    _in_child(lambda _told_by: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(20)))
    return "SCHED_FIFO is allowed"


def _spinners() -> str:
    from testbed.lab.host_settings import spinner_refused

    return _unless(spinner_refused(), "spinners at idle priority (SCHED_IDLE) may keep processors awake")


def _real_time() -> str:
    from testbed.lab import steadiness

    return _unless(steadiness.real_time_lacks(), "workers may run under SCHED_RR")


def _halting() -> str:
    from testbed.lab import steadiness

    return steadiness.shown(*steadiness.halting())


def _tcp_mem() -> str:
    from testbed.lab.transport import get_sysctl, tcp_memory_warning

    try:
        value = get_sysctl("net.ipv4.tcp_mem")
    except FileNotFoundError:
        return "the machine's net.ipv4.tcp_mem is not seen from a container's network namespace"
    return _unless(tcp_memory_warning(value, _TCP_MEM_BYTES), f"net.ipv4.tcp_mem = {value} pages")


def _timers() -> str:
    from testbed.lab.disturbance import sleep_lateness

    median = sleep_lateness(sleeps=50).median
    said = f"a sleep of 1 ms is {median * 1e6:.0f} us late (median)"
    return _unless(said if median > 500e-6 else None, said)


def _torch() -> str:
    if importlib.util.find_spec("torch") is None:
        raise _MissingError("torch is not installed")
    return "torch is installed (not imported)"


def _memory() -> str:
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                pages = int(line.split()[1]) * 1024
    if pages < 2**30:
        raise _MissingError(f"{pages / 2**20:.0f} MiB available")
    return f"{pages / 2**30:.1f} GiB available, {os.cpu_count()} CPUs"


_NETEM_REMEDY = "apt-get install linux-modules-extra-$(uname -r) && modprobe sch_netem"
_RELAY = "links are shaped by the relay (--shaper relay), or by netem in a guest (--vm)"
_POLICE = "a queue's room (`queue`) is for the relay, or for a guest (--vm)"
_CARDS = "no network cards (`inside`) where there is no netem either"
_LIMITS_REMEDY = "run as root where /sys/fs/cgroup is writable (docker run --privileged)"
_LIMITS = "`memory` and `cpus` of a datacenter are refused"
_REAL_TIME_REMEDY = "docker run --cap-add SYS_NICE, or ulimit -r 20"
_REAL_TIME = "workers wait behind other work; in a cgroup of version 1, give its cpu.rt_runtime_us a share"

_PROBES = (
    _Probe("root", _root, "run as root: sudo testbed ..."),
    _Probe(
        "namespaces", _namespaces, "use a kernel with namespaces, in a VM or a privileged container", in_namespace=True
    ),
    _Probe("util-linux", _util_linux, "apt-get install util-linux", in_namespace=True),
    _Probe("mnexec", _mnexec, "apt-get install mininet", in_namespace=True),
    _Probe("mininet", _mininet, extras.command("train")),
    _Probe("veth", _veth, "modprobe veth", in_namespace=True),
    _Probe("tap", _tap, "modprobe tun", in_namespace=True),
    _Probe("netem", _netem, _NETEM_REMEDY, needed=False, otherwise=_RELAY, in_namespace=True),
    _Probe(
        "police",
        _police,
        "modprobe -a sch_ingress cls_matchall act_police",
        needed=False,
        otherwise=_POLICE,
        in_namespace=True,
    ),
    _Probe("tbf", _tbf, "modprobe sch_tbf", needed=False, otherwise=_CARDS, in_namespace=True),
    _Probe("multipath", _multipath, "use a kernel with CONFIG_IP_ROUTE_MULTIPATH", needed=False, in_namespace=True),
    _Probe("ping", _ping, "apt-get install iputils-ping", in_namespace=True),
    _Probe("iperf3", _iperf3, "apt-get install iperf3", needed=False),
    _Probe("sched_fifo", _sched_fifo, "give the process CAP_SYS_NICE", needed=False),
    _Probe(
        "isolation", _isolation, "run as root, in a container with SETUID and SETGID", needed=False, in_namespace=True
    ),
    _Probe("limits", _limits, _LIMITS_REMEDY, needed=False, otherwise=_LIMITS),
    _Probe("spinners", _spinners, "use a sandbox that lets SCHED_IDLE be asked for", needed=False),
    _Probe("real_time", _real_time, _REAL_TIME_REMEDY, needed=False, otherwise=_REAL_TIME),
    _Probe("halting", _halting, "stop other load, and try again", needed=False),
    _Probe("timers", _timers, "use a kernel with high-resolution timers; stop other load", needed=False),
    _Probe("tcp_mem", _tcp_mem, "sysctl -w net.ipv4.tcp_mem='131072 131072 262144'", needed=False),
    _Probe("memory", _memory, "use a machine with 2 GiB free"),
    _Probe("torch", _torch, extras.command("train")),
)
