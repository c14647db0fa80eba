"""`testbed shell`: Mininet's command line in a lab, on a real (pseudo-)terminal, with Ctrl-C."""

from __future__ import annotations

import time

import pytest
from networks import two_datacenters
from terminal import Terminal

pytestmark = pytest.mark.root


def shell() -> int:
    from testbed.lab.network import Lab

    with Lab(two_datacenters("1 ms", nodes=2), shaper="relay") as lab:
        lab.shell()
    return 0


shell.interactive = True  # type: ignore[attr-defined]


def test_commands_pingall_and_ctrl_c() -> None:
    terminal = Terminal(shell)
    terminal.expect("mininet> ")
    terminal.type(b"a/0 ping -c 1 b/1\n")
    terminal.expect("1 received")
    terminal.expect("mininet> ")
    terminal.type(b"pingall\n")
    terminal.expect("0% dropped (30/30 received)")
    terminal.expect("mininet> ")
    terminal.type(b"a/0 ping b/1\n")
    terminal.expect("icmp_seq=2")
    terminal.type(b"\x03")  # ends the ping, not the shell
    terminal.expect("packets transmitted")
    terminal.expect("mininet> ")
    time.sleep(0.5)  # a second Ctrl-C within 0.3 s counts as the same one
    terminal.type(b"\x03")
    terminal.expect("mininet> ")
    time.sleep(2.2)  # longer than an interrupted lab may live: this one was not told to end
    terminal.type(b"exit\n")
    assert terminal.exit_code() == 0
