"""What code of a job can reach from within a guest, as its root and as a worker (docs/isolation.md)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from escapes import TOPOLOGY, WORKLOAD, got_out, shown_to, told

from testbed.errors import ExitCode
from testbed.lab.confinement import WORKER_USER
from testbed.vm import kernel

LIMIT_S = 240
TRIED = """

import ctypes, json, os
from pathlib import Path

def tried(attempt):
    try:
        return attempt() or "done"
    except OSError as error:
        return type(error).__name__

def mounted():
    Path("/run/host").mkdir(exist_ok=True)
    if ctypes.CDLL(None).mount(b"none", b"/run/host", b"hostfs", 0, b"/"):
        raise OSError("no mount")

if Path("/run/testbed/out/0").is_dir() and not Path("/run/testbed/out/0/escapes.json").exists():
    found = {"mount": tried(mounted)}
    for place in ("", "/run/host"):
        found[f"{place}/etc/shadow"] = tried(lambda: Path(f"{place}/etc/shadow").read_text())
        found[f"{place}/root"] = tried(lambda: " ".join(map(str, Path(f"{place}/root").rglob("SECRET*"))))
        found[f"{place}/etc"] = tried(lambda: Path(f"{place}/etc/escaped").write_text("x") and "")
        found[f"{place}HERE"] = tried(lambda: Path(f"{place}HERE/escaped").write_text("x") and "")
    found["kill"] = tried(lambda: os.kill(HOST_PID, 9))
    found["module"] = tried(lambda: Path("/lib/modules/escaped").mkdir())
    found["environment"] = [name for name in os.environ if "SECRET" in name]
    Path("/run/testbed/out/0/link").symlink_to("/etc")
    found["link"] = tried(lambda: Path("/run/testbed/out/0/link/escaped").write_text("x") and "")
    Path("/run/testbed/out/0/link").unlink()
    Path("/run/testbed/out/0/escapes.json").write_text(json.dumps(found))
"""


def test_what_code_of_a_job_reaches_from_a_guest(
    time_travel_kernel: kernel.Kernel, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The results directory, and nothing else: with root's rights, and also where it mounts the host's files itself.

    A directory that is shown can be read besides. That only adds to what there is: what is reached is no less than
    without one.
    """
    there = tmp_path_factory.mktemp("there")
    home = tmp_path / "home"
    home.mkdir()
    (home / "SECRET").write_text("key")
    known = {"HERE": str(tmp_path), "HOME": str(home), "PYTHON": sys.prefix, "HOST_PID": os.getpid()}
    model = shown_to(there, **known, PORT=1, SOCKET="nobody-listens")
    tried = TRIED.replace("HERE", str(tmp_path)).replace("HOST_PID", str(os.getpid())).replace("/root", str(home))
    (tmp_path / "stranger.py").write_text(f"{model}{tried}")
    (tmp_path / "job.yaml").write_text(WORKLOAD)
    (tmp_path / "pair.yaml").write_text(TOPOLOGY)
    words = ["run", "pair.yaml", "job.yaml", "--no-picture", "--show", str(there / "shown")]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "testbed", *words, "--clock", "virtual", "--out", "out", "--quiet"],
        cwd=tmp_path,
        env={
            **os.environ,
            "HOME": str(home),
            "XDG_CACHE_HOME": str(kernel.cache_directory().parents[1]),
            "SECRET": "x",
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode in (ExitCode.OK, ExitCode.UNTRUSTED), done.stderr
    found = json.loads((tmp_path / "out/escapes.json").read_text())
    refused = {"OSError", "PermissionError", "FileNotFoundError", "ProcessLookupError"}
    for place in ("", "/run/host"):
        assert found[f"{place}/etc/shadow"] in {"done", *refused}, "the words of the file would stand there"
        assert "SECRET" not in found[f"{place}{home}"]
        assert found[f"{place}/etc"] in refused
        assert found[f"{place}{tmp_path}"] in refused
    assert found["kill"] in refused
    assert found["module"] in refused
    assert found["link"] in refused
    assert found["environment"] == []
    reports = told("".join(path.read_text() for path in sorted((tmp_path / "out/logs").iterdir())))
    assert len(reports) == 2
    for report in reports:
        assert got_out(report["tried"]) == {}
        assert got_out(report["shown"]) == {"read": "tokens", "names beside": "shown"}
        assert report["user"] == [str(WORKER_USER)] * 4
        assert report["capabilities"] == ["0" * 16] * 4
    assert not Path("/etc/escaped").exists()
    assert not (tmp_path / "escaped").exists()
    assert sorted(path.name for path in (there / "shown").iterdir()) == ["data", "link"]
