"""TCP profiles as data, applied to one container's namespace after Mininet made it, and read back.

`otn-lossless` imitates RDMA over a lossless OTN; `tcp-default` changes nothing and shows what ordinary TCP would do,
`tcp-cubic` and `tcp-bbr` the same whatever congestion control the machine has by default.
Why each setting is there: docs/how-true.md, "TCP as a stand-in for RDMA".
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from pathlib import Path

from testbed.errors import BadInput, MachineLacks, RunFailed, listed
from testbed.lab.namespaces import inside

_MIDDLE_BYTES, _LARGEST_BYTES = 32 * 2**20, 128 * 2**20
_PAGE_BYTES = 4096


@dataclass(frozen=True)
class TcpProfile:
    """A TCP profile. `sysctls` must stick; of `congestion_control` the first that the kernel allows is used."""

    name: str
    sysctls: dict[str, str]
    congestion_control: tuple[str, ...]
    initial_windows: bool
    """Whether routes carry initcwnd and initrwnd, so that a first message needs no slow start."""
    sysctls_if_known: dict[str, str] = field(default_factory=dict)
    """As `sysctls`, but left out where the kernel is too old to have one."""


RECORDED = (
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_early_retrans",
    "net.ipv4.tcp_ecn",
    "net.ipv4.tcp_moderate_rcvbuf",
    "net.ipv4.tcp_no_metrics_save",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_tso_rtt_log",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_wmem",
)
"""What the manifest says about every namespace, whatever the profile, as far as the kernel has it."""


_KERNEL_MOST_BYTES = 2**31 - 1
"""These settings are C ints; TCP's own window ends at 1 GiB anyway."""

_LONGEST_ROUND_TRIP_LOG = 31
"""Linux >= 5.18 adds its longest super-packet, halved once for every 2^this microseconds of the shortest round trip, to
what it would make of its pace; a shift by more would be undefined."""


_ORDINARY: dict[str, tuple[str, ...]] = {"tcp-default": (), "tcp-cubic": ("cubic",), "tcp-bbr": ("bbr",)}
"""TCP as the kernel has it, but for the congestion control."""


def profile(name: str, largest_window_bytes: float) -> TcpProfile:
    """The profile called `name`, with buffers for `largest_window_bytes` in flight. Raises BadInput for another name.

    Half of the middle value of tcp_rmem becomes the initial window, so it is at least twice what is in flight.
    """
    if name in _ORDINARY:
        return TcpProfile(name, {}, _ORDINARY[name], initial_windows=False)
    if name != "otn-lossless":
        raise BadInput.of("--transport", "transport", name, f"one of {listed(('otn-lossless', *_ORDINARY))}")
    middle = min(_KERNEL_MOST_BYTES, max(_MIDDLE_BYTES, 1 << (int(2 * largest_window_bytes) - 1).bit_length()))
    buffers = f"4096 {middle} {min(_KERNEL_MOST_BYTES, max(_LARGEST_BYTES, 4 * middle))}"
    return TcpProfile(
        name,
        {
            "net.ipv4.tcp_slow_start_after_idle": "0",
            "net.ipv4.tcp_rmem": buffers,
            "net.ipv4.tcp_wmem": buffers,
            "net.ipv4.tcp_no_metrics_save": "1",
            "net.ipv4.tcp_timestamps": "1",
            "net.ipv4.tcp_window_scaling": "1",
            "net.ipv4.tcp_sack": "1",
            "net.ipv4.tcp_ecn": "0",
            # no tail-loss probes: where nothing is lost, a late acknowledgement means a busy CPU, and the probe would
            # be a retransmission that makes a good run untrusted
            "net.ipv4.tcp_early_retrans": "0",
        },
        ("cubic", "reno"),
        initial_windows=True,
        # super-packets as long as they may be, whatever acknowledgements have to wait for: else TCP makes them of what
        # it reckons to send in 1 ms, at a window in a round trip (tcp_tso_autosize in tcp_output.c)
        sysctls_if_known={"net.ipv4.tcp_tso_rtt_log": str(_LONGEST_ROUND_TRIP_LOG)},
    )


def apply(chosen: TcpProfile, pid: int, where: str) -> dict[str, str]:
    """Apply a profile in the network namespace of process `pid`. Returns all RECORDED settings as read back.

    Raises RunFailed when a setting did not stick, MachineLacks for a congestion control that the kernel has not.
    """
    with inside(pid):
        known = {key: value for key, value in chosen.sysctls_if_known.items() if _path(key).exists()}
        for key, value in (chosen.sysctls | known).items():
            set_sysctl(key, value, where)
        _choose_control(chosen, where)
        return {key: get_sysctl(key) for key in RECORDED if _path(key).exists()}


def _choose_control(chosen: TcpProfile, where: str) -> None:
    """Have the current namespace use the first congestion control of a profile's that it may. Raises MachineLacks."""
    refused = []
    for name in chosen.congestion_control:
        try:
            _path("net.ipv4.tcp_congestion_control").write_text(name, encoding="ascii")
        except OSError as error:  # the machine's own namespace decides which ones its children may use
            allowed = "net.ipv4.tcp_allowed_congestion_control"
            known = error.errno == errno.EPERM
            remedy = f'sysctl -w {allowed}="$(sysctl -n {allowed}) {name}"' if known else f"modprobe tcp_{name}"
            refused.append(f"{name} ({error.strerror}; add it with: {remedy})")
        else:
            return
    if refused:
        raise MachineLacks(f"transport {chosen.name}: {where} cannot use congestion control {' or '.join(refused)}")


def set_sysctl(key: str, value: str, where: str) -> None:
    """Write a sysctl of the calling thread's network namespace and read it back. Raises RunFailed."""
    try:
        _path(key).write_text(value, encoding="ascii")
        found = get_sysctl(key)
    except OSError as error:
        raise RunFailed(f"{where}: sysctl {key} = {value}: {error}") from error
    if found.split() != value.split():
        raise RunFailed(f"{where}: sysctl {key}: asked {value!r}, the kernel has {found!r}")


def get_sysctl(key: str) -> str:
    """A sysctl of the calling thread's network namespace, blanks normalised. Raises OSError."""
    return " ".join(_path(key).read_text(encoding="ascii").split())


def tcp_memory_warning(tcp_mem: str, needed_bytes: float) -> str | None:
    """Why the machine's global `tcp_mem` (three numbers of pages) is too small for `needed_bytes` of buffers, or None.

    It belongs to the whole machine, so it is not changed here. Beyond it TCP throttles without any drop.
    """
    pressure = int(tcp_mem.split()[1]) * _PAGE_BYTES
    if pressure >= needed_bytes:
        return None
    pages = int(needed_bytes // _PAGE_BYTES) + 1
    return (
        f"net.ipv4.tcp_mem allows {pressure / 2**20:.0f} MiB before TCP throttles, this lab may need "
        f"{needed_bytes / 2**20:.0f} MiB; raise it with: sysctl -w net.ipv4.tcp_mem='{pages} {pages} {2 * pages}'"
    )


def _path(key: str) -> Path:
    return Path("/proc/sys") / key.replace(".", "/")


_CONTAINER_SYSCTLS = {
    "net.ipv4.conf.all.rp_filter": "0",
    "net.ipv4.conf.default.rp_filter": "0",
    "net.ipv4.conf.all.send_redirects": "0",
    "net.ipv4.conf.default.send_redirects": "0",
}
"""Every container's namespace has these; borders forward as well."""


def prepare_namespace(name: str, *, forward: bool) -> dict[str, str]:
    """Sysctls of the current network namespace: no surprises from filters, redirects or IPv6."""
    wanted = _CONTAINER_SYSCTLS | ({"net.ipv4.ip_forward": "1"} if forward else {})
    for family in ("all", "default"):
        if Path(f"/proc/sys/net/ipv6/conf/{family}").is_dir():
            wanted[f"net.ipv6.conf.{family}.disable_ipv6"] = "1"
    for key, value in wanted.items():
        set_sysctl(key, value, name)
    return {key: get_sysctl(key) for key in wanted}
