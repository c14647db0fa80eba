"""The network inside a lab: addresses, routes, neighbours, sysctls as the kernel has them; packets that get through."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_sandbox import SandboxFailedError, in_sandbox
from networks import network, two_datacenters

pytestmark = pytest.mark.root


def triangle_facts() -> dict[str, Any]:
    from testbed.lab.lab import Lab
    from testbed.lab.netlink import Netlink

    # The direct link a-c is slower than the way over b: traffic must take the way over b.
    topology = network(
        {"a": 2, "b": 1, "c": 1},
        [
            {"between": ["a", "b"], "delay": "2 ms", "rate": "1 Gbit/s"},
            {"between": ["b", "c"], "delay": "2 ms", "rate": "100 Mbit/s"},
            {"between": ["a", "c"], "delay": "30 ms", "rate": "1 Gbit/s"},
        ],
    )
    with Lab(topology, shaper="relay", largest_burst_bytes=1_000_000) as lab:
        with Netlink(lab.containers["a/1"].pid, "a/1") as netlink:
            node_routes = {
                f"{m.get_attr('RTA_DST')}/{m['dst_len']}": [
                    m.get_attr("RTA_GATEWAY"),
                    m.get_attr("RTA_METRICS") and m.get_attr("RTA_METRICS").get_attr("RTAX_INITCWND"),
                ]
                for m in netlink.ask("get_routes", family=socket.AF_INET, table=254)
            }
            neighbours = [
                [m.get_attr("NDA_DST"), m["state"]] for m in netlink.ask("get_neighbours", family=socket.AF_INET)
            ]
            link = netlink.ask("link", "get", index=netlink.index("lan0"))[0]
        with Netlink(lab.routers["a"].pid, "a") as netlink:
            router_routes = {
                m.get_attr("RTA_DST"): m.get_attr("RTA_GATEWAY")
                for m in netlink.ask("get_routes", family=socket.AF_INET, table=254)
                if m["dst_len"] == 16
            }
        ping = lab.containers["a/1"].run(["ping", "-c", "5", "-i", "0.05", "-q", lab.address("c/0")])
        loss = lab.net.pingAll(timeout="2")
        counters = lab.counters()
        described = lab.describe()
        return {
            "addresses": [lab.address(name) for name in ("a/0", "a/1", "b/0", "c/0", "a")],
            "interface": lab.interface("a/1"),
            "node_routes": node_routes,
            "neighbours": neighbours,
            "mtu": link.get_attr("IFLA_MTU"),
            "gso": [link.get_attr("IFLA_GSO_MAX_SIZE"), link.get_attr("IFLA_GSO_MAX_SEGS")],
            "router_routes": router_routes,
            "ping": ping,
            "loss": loss,
            "packets": [row.packets for row in counters],
            "dropped": [row.dropped for row in counters],
            "sysctls": described["containers"]["a"]["sysctls"],
            "node_sysctls": described["containers"]["a/0"]["sysctls"],
        }


@pytest.fixture(scope="module")
def triangle() -> dict[str, Any]:
    found: dict[str, Any] = in_sandbox(triangle_facts)
    return found


def test_addresses(triangle: dict[str, Any]) -> None:
    assert triangle["addresses"] == ["10.1.0.2", "10.1.0.6", "10.2.0.2", "10.3.0.2", "10.1.0.1"]
    assert triangle["interface"] == "lan0"


def test_packets_take_the_path_of_least_delay(triangle: dict[str, Any]) -> None:
    assert "5 received" in triangle["ping"]
    assert triangle["router_routes"] == {"10.2.0.0": "10.128.0.2", "10.3.0.0": "10.128.0.2"}
    direct = triangle["packets"][4:6]
    assert direct == [0, 0]
    assert all(count >= 5 for count in triangle["packets"][:4])


def test_everybody_reaches_everybody(triangle: dict[str, Any]) -> None:
    assert triangle["loss"] == 0
    assert triangle["dropped"] == [0] * 6


def test_node_routes_carry_initial_windows(triangle: dict[str, Any]) -> None:
    # To c: the slowest rate 100 Mbit/s, RTT 8 ms: BDP 100 kB; (2 x 100 kB + 1 MB) / 8948 = 134.1.
    assert triangle["node_routes"]["10.3.0.0/16"] == ["10.1.0.5", 135]
    # To b: 1 Gbit/s, RTT 4 ms: BDP 500 kB; (2 x 500 kB + 1 MB) / 8948 = 223.5.
    assert triangle["node_routes"]["10.2.0.0/16"] == ["10.1.0.5", 224]


def test_neighbours_are_permanent(triangle: dict[str, Any]) -> None:
    permanent = 0x80
    assert ["10.1.0.5", permanent] in triangle["neighbours"]


def test_super_packets_fit_a_millisecond_of_the_slowest_link(triangle: dict[str, Any]) -> None:
    assert triangle["mtu"] == 9000
    assert triangle["gso"] == [65_536, 1]  # 12,500 bytes are one segment; a limit in bytes would be less than that


def test_settings_are_read_back(triangle: dict[str, Any]) -> None:
    assert triangle["sysctls"]["net.ipv4.ip_forward"] == "1"
    assert "net.ipv4.ip_forward" not in triangle["node_sysctls"]
    node = triangle["node_sysctls"]
    assert node["net.ipv4.conf.all.rp_filter"] == "0"
    assert node["net.ipv4.tcp_slow_start_after_idle"] == "0"
    assert node["net.ipv4.tcp_congestion_control"] in ("cubic", "reno")
    assert node["net.ipv4.tcp_rmem"].split()[1] == str(32 * 2**20)
    assert node.get("net.ipv4.tcp_tso_rtt_log", "31") == "31"  # kernels before 5.18 have none


def transfer(transport: str, size: int) -> dict[str, Any]:
    """One message of `size` bytes between two nodes 10 ms apart at 1 Gbit/s, over a connection that has idled."""
    import threading
    import time

    from testbed.lab.lab import Lab
    from testbed.lab.namespaces import inside

    plan = replace(two_datacenters("10 ms", "1 Gbit/s"), transport=transport)  # type: ignore[arg-type]
    with Lab(plan, shaper="relay", largest_burst_bytes=size) as lab:
        with inside(lab.containers["b/0"].pid):
            listener = socket.create_server((lab.address("b/0"), 0))
        with inside(lab.containers["a/0"].pid):
            sender = socket.socket()
        sender.connect(listener.getsockname())
        receiver, _ = listener.accept()
        before = lab.counters()
        message, times = bytes(size), []
        for _ in range(4):
            time.sleep(0.5)  # longer than a retransmission timeout: an untuned TCP starts slowly again
            begin = time.monotonic()
            thread = threading.Thread(target=sender.sendall, args=(message,))
            thread.start()
            left = size
            while left:
                left -= len(receiver.recv(min(left, 1 << 20)))
            times.append(time.monotonic() - begin)
            thread.join()
        after = lab.counters()
        return {
            "times": times,
            "sysctls": lab.describe()["containers"]["a/0"]["sysctls"],
            "row": after[0].since(before[0]).as_row(),
            "tcp": lab.tcp_counters()["a/0"],
        }


def test_lossless_transport_sends_a_message_in_its_ideal_time() -> None:
    size = 1_000_000  # below the BDP of 2.5 MB, where slow start would show
    found = in_sandbox(transfer, "otn-lossless", size)
    ideal = 0.010 + 8 * size * (9014 / 8948) / 1e9
    # slow start would cost at least one round trip, 20 ms, more; a busy machine costs less
    assert 0.98 * ideal < min(found["times"]) < ideal + 0.010
    assert found["tcp"]["TcpRetransSegs"] == 0
    assert found["row"]["dropped"] == 0
    assert found["row"]["payload_bytes"] == 4 * size
    segments = found["row"]["packets"]
    assert found["row"]["wire_bytes"] >= 4 * size + 66 * segments  # headers of every segment are charged


def test_default_transport_is_left_alone_and_slower() -> None:
    size = 1_000_000
    tuned = in_sandbox(transfer, "otn-lossless", size)
    default = in_sandbox(transfer, "tcp-default", size)
    assert default["sysctls"]["net.ipv4.tcp_slow_start_after_idle"] == "1"
    # the first message takes the round trips of a slow start; a busy machine makes it longer, and not all of the others
    assert default["times"][0] > 2 * min(tuned["times"])


@pytest.mark.parametrize("control", ["cubic", "bbr"])
def test_an_ordinary_transport_has_the_congestion_control_of_its_name(control: str) -> None:
    allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text().split()
    if control not in allowed:
        with pytest.raises(
            SandboxFailedError, match=rf"tcp-{control}: .* {control} \(.*; add it with: (modprobe|sysctl)"
        ):
            in_sandbox(transfer, f"tcp-{control}", 1000)
        return
    found = in_sandbox(transfer, f"tcp-{control}", 1000)
    assert found["sysctls"]["net.ipv4.tcp_congestion_control"] == control
    assert found["sysctls"]["net.ipv4.tcp_slow_start_after_idle"] == "1"


def attach_facts() -> dict[str, Any]:
    from testbed.lab.lab import Lab

    with Lab(two_datacenters(), shaper="relay") as lab:
        read, write = os.pipe()
        if os.fork() == 0:
            lab.attach("a/0")
            if os.fork() == 0:
                interfaces = sorted(name for _, name in socket.if_nameindex())
                seen = list(Path("/proc").glob("[0-9]*"))
                os.write(write, struct.pack("i", os.getpid()) + f"{interfaces} {len(seen)} {Path.cwd()}".encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            said = pipe.read()
        return {"pid": struct.unpack_from("i", said)[0], "rest": said[4:].decode(), "cwd": str(Path.cwd())}


def test_a_worker_can_move_into_a_container() -> None:
    found = in_sandbox(attach_facts)
    assert found["pid"] < 20  # numbered by the container, not by the sandbox
    interfaces, processes, cwd = found["rest"].rsplit(" ", 2)
    assert interfaces == "['lan0', 'lo']"
    assert int(processes) <= 3  # the container's shell, and ourselves
    assert cwd == found["cwd"]


def unshaped_facts(shaper: str) -> list[Any]:
    from testbed.lab.lab import Lab
    from testbed.lab.shaping import netem

    if shaper == "netem" and netem.available() is not None:
        return []
    plan = two_datacenters("40 ms", "10 Mbit/s", jitter="1 ms", loss=0.01, queue="100 kB")
    with Lab(plan, shaper=shaper, largest_burst_bytes=1_000_000) as lab:
        before = lab.describe()["links"]
        with lab.unshaped():
            meanwhile = lab.describe()["links"]
            said = lab.containers["a/0"].run(["ping", "-c", "10", "-i", "0.05", "-q", lab.address("b/0")])
        return [before, meanwhile, lab.describe()["links"], said]


@pytest.mark.parametrize("shaper", ["relay", "netem"])
def test_shaping_is_taken_away_and_comes_back_as_it_was(shaper: str) -> None:
    found = in_sandbox(unshaped_facts, shaper)
    if not found:
        pytest.skip("this kernel has no netem")
    before, meanwhile, after, said = found
    assert after == before
    assert len(meanwhile) == 2
    for shaped, free in zip(before, meanwhile, strict=True):
        changed = {name for name in shaped if free[name] != shaped[name]}
        in_words = {name.removesuffix("_ns").removesuffix("_s").split("_")[0] for name in changed}
        assert in_words == {"delay", "jitter", "loss", "rate"}
    assert " 0% packet loss" in said
    fastest_ms = float(said.rpartition(" = ")[2].split("/")[0])
    assert fastest_ms < 40, "of ten round trips over two delays of 40 ms"


def test_a_lab_outside_a_sandbox_is_refused() -> None:
    from testbed.errors import RunFailed
    from testbed.lab.lab import Lab

    with pytest.raises(RunFailed, match="run_in_sandbox"), Lab(two_datacenters(), shaper="relay"):
        pass
