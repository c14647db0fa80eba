"""What commands ask of a kept guest, where there is none, or one that does not suit."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from in_process import run_testbed

from testbed.errors import ExitCode
from testbed.vm import guest_machine, kept_guest
from testbed.vm.guest_machine import GuestMachine

MACHINE = GuestMachine(Path("/nowhere"), True, 1, (), {"sha256": "abc"}, seccomp=True)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv(kept_guest.VARIABLE, raising=False)
    return kept_guest.directory()


def test_a_socket_that_nobody_listens_at_is_no_guest(place: Path) -> None:
    assert kept_guest.find() is None
    place.mkdir()
    assert kept_guest.find() is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(place / kept_guest.SOCKET))
    assert kept_guest.find() is None
    assert kept_guest.suitable(MACHINE, 4096, training=True, shown=False, directories=1) == (None, None)


def test_status_and_stop_say_that_there_is_none(place: Path) -> None:
    assert run_testbed("guest", "status").stdout == "no guest is kept; testbed guest start keeps one\n"
    assert json.loads(run_testbed("guest", "status", "--json").stdout) == {"kept": False}
    assert run_testbed("guest", "stop") == (ExitCode.OK, "no guest is kept\n", "")


@pytest.mark.parametrize(
    "words",
    [
        ("--idle", "5"),
        ("--idle", "0 s"),
        ("--idle", "999 ms"),
        ("--guest-memory", "2047 MiB"),
        ("--guest-memory", f"{max(4, guest_machine.memory_of_machine() // 2**30) + 1} GiB"),
        ("--guest-memory", "2 PB"),
    ],
)
def test_bad_options_start_nothing(place: Path, words: tuple[str, str]) -> None:
    done = run_testbed("guest", "start", *words)
    assert done.returncode == ExitCode.BAD_INPUT
    assert words[0] in done.stderr
    assert words[1] in done.stderr
    assert not place.exists()


def test_what_decides_nanoseconds_has_to_be_the_same() -> None:
    here = kept_guest.description(MACHINE)
    assert kept_guest.unlike(here, dict(here)) == []
    for name in here:
        assert len(kept_guest.unlike({**here, name: "other"}, here)) == 1, name
    assert kept_guest.unlike({**here, "seed": 3}, here) == ["its seed is 3, not 1"]


def test_what_is_installed_later_is_another_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site.getsitepackages", lambda: [str(tmp_path), str(tmp_path / "missing")])
    (tmp_path / "torch").mkdir()
    before = kept_guest.description(MACHINE)["python"]
    assert kept_guest.description(MACHINE)["python"] == before
    (tmp_path / "another").mkdir()
    assert kept_guest.description(MACHINE)["python"] != before
