"""What code of a job reaches from a container on the real clock, escape by escape (docs/isolation.md)."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from escapes import TOPOLOGY, WORKLOAD, got_out, shown_to, stranger, told
from ordinary_user import as_user

from testbed.errors import ExitCode
from testbed.lab.capabilities import SYS_NICE, Capability, lacking
from testbed.lab.confinement import MOST_TASKS, WORKER_USER
from testbed.vm import kernel

pytestmark = pytest.mark.root
ROOT = Path(__file__).parents[2]
LIMIT_S = 240
SOCKET = "testbed-escape"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the processes of one run have found: two workers, and who trains the same in one process.

    A directory is shown to them. That only adds to what they see: what they reach is no less than without.
    """
    here, home, there = map(tmp_path_factory.mktemp, ("here", "home", "there"))
    for directory in (here, home):
        directory.chmod(0o777)
        (directory / "SECRET").write_text("key")
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as port,
        closing(socket.socket(socket.AF_UNIX)) as abstract,
        closing(socket.socket(socket.AF_UNIX)) as named,
    ):
        abstract.bind(f"\0{SOCKET}")
        named.bind(str(here / SOCKET))
        (here / SOCKET).chmod(0o777)
        abstract.listen()
        named.listen()
        code = shown_to(
            there,
            HERE=str(here),
            HOME=str(home),
            PYTHON=sys.prefix,
            HOST_PID=os.getpid(),
            PORT=port.getsockname()[1],
            SOCKET=SOCKET,
        )
        done = command(here, code, words=["--show", str(there / "shown")], HOME=str(home), SECRET="x")
    assert done.returncode in (ExitCode.OK, ExitCode.UNTRUSTED), done.stderr
    said = done.stdout + done.stderr + "".join(path.read_text() for path in sorted((here / "out/logs").iterdir()))
    reports = told(said)
    assert len(reports) == 3, said
    return [report | {"out": str(here / "out"), "there": str(there / "shown")} for report in reports]


def command(
    here: Path, code: str, before: Sequence[str] = (), words: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """A run with a model of this code; `before` begins the command line, `words` are more options."""
    (here / "stranger.py").write_text(code)
    (here / "job.yaml").write_text(WORKLOAD)
    (here / "pair.yaml").write_text(TOPOLOGY)
    silent = "--quiet", "--no-picture", "--again=0"
    run = [sys.executable, "-P", "-m", "testbed", "run", "pair.yaml", "job.yaml", "--out", "out", *silent]
    return subprocess.run(
        [*before, *run, *words],
        cwd=here,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_every_attempt_failed(found: list[dict[str, Any]]) -> None:
    for report in found:
        assert got_out(report["tried"]) == {}


def test_a_worker_has_no_right_but_that_to_its_priority(found: list[dict[str, Any]]) -> None:
    """Root that may not raise a limit lets workers keep the right to real-time priorities."""
    priority = 1 << SYS_NICE.bit
    may_raise_limits = not lacking([Capability("SYS_RESOURCE", 24, "raises limits")])
    for report in found:
        assert report["user"] == [str(WORKER_USER)] * 4
        assert report["group"] == 0
        held = [int(mask, 16) for mask in report["capabilities"]]
        assert held == [0, 0, 0, 0] or (held == [0, priority, priority, 0] and not may_raise_limits)
        assert report["no new privileges"] == "1"
        assert report["most tasks"] == MOST_TASKS
        assert report["oom"] == "1000"


def test_what_it_sees_is_its_own(found: list[dict[str, Any]]) -> None:
    for report in found:
        assert report["processes"] <= 3  # the holder of its container, its shell, itself
        assert not [name for name in report["environment"] if "SECRET" in name]
        assert report["home"] == report["secrets"] == []
        assert "SECRET" not in report["here"]
    manifest = json.loads((Path(found[0]["out"]) / "manifest.json").read_text())
    shown = {"shown": [found[0]["there"]]}
    assert manifest["confinement"] == {"user": WORKER_USER, "stays": "", "capabilities": []} | shown


def test_of_a_user_too_who_cannot_become_somebody_else() -> None:
    """In a user namespace workers stay who started the lab: they may signal what its containers run, no more."""
    own_tap = 'mount -t tmpfs none /dev/net && mknod -m 666 /dev/net/tun c 10 200 && exec "$@"'
    with tempfile.TemporaryDirectory(prefix="testbed-user-") as name:
        here = Path(name)
        here.chmod(0o777)
        (here / "SECRET").write_text("key")
        before = ["unshare", "--mount", "sh", "-c", own_tap, "sh", *as_user(here, kernel.cache_directory())]
        known = {"HERE": name, "HOME": name, "PYTHON": sys.prefix, "HOST_PID": os.getpid()}
        done = command(here, stranger(**known, PORT=1, SOCKET="nobody-listens"), before)
        assert done.returncode in (ExitCode.OK, ExitCode.UNTRUSTED), done.stderr
        reports = told("".join(path.read_text() for path in sorted((here / "out/logs").iterdir())))
        manifest = json.loads((here / "out/manifest.json").read_text())
    assert manifest["confinement"]["stays"] == "a user namespace has one user"
    assert len(reports) == 2
    for report in reports:
        assert got_out(report["tried"]) == {"kill the container": "done", "become root": "done"}  # which it is called
        assert report["home"] == []
        assert not int(report["capabilities"][2], 16) & ~(1 << SYS_NICE.bit)


def test_a_directory_that_is_shown_can_be_read_and_nothing_else(found: list[dict[str, Any]]) -> None:
    for report in found:
        assert got_out(report["shown"]) == {"read": "tokens", "names beside": "shown"}
        assert sorted(path.name for path in Path(report["there"]).iterdir()) == ["data", "link"]


PICKLED = """

class Marker:
    def __reduce__(self):
        import os
        return os.system, ("touch MARK",)


def attack():
    import os, pickle, socket, struct
    content = pickle.dumps(Marker())
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as end:
                if end.family == socket.AF_UNIX:
                    end.send(struct.pack("!i", len(content)) + content)
        except OSError:
            pass


class Stranger(Mlp):
    def batch(self, *values):
        attack()
        return super().batch(*values)

    def loss(self, *values):
        attack()
        return super().loss(*values)
"""


def test_what_a_worker_says_is_no_program_for_the_command(tmp_path: Path) -> None:
    """A pickle that would run a command, from a worker: the run ends, and nothing is run."""
    model = (ROOT / "examples/my_model.py").read_text(encoding="utf-8")
    done = command(tmp_path, model + PICKLED.replace("MARK", str(tmp_path / "mark")))
    assert done.returncode == ExitCode.RUN_FAILED, done.stderr
    assert "said what no worker says: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "mark").exists()


def test_the_page_has_every_attempt(found: list[dict[str, Any]]) -> None:
    page = (ROOT / "docs/isolation.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| ([a-z][a-z, ]+?) \|", page, re.MULTILINE))
    assert {name for name in found[0]["tried"] if not name.startswith("write ")} <= listed
