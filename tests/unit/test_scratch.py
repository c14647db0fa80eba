"""A temporary directory goes with its process, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from processes import command_line, descendants, wait_until

from testbed.errors import RunFailed
from testbed.scratch import scratch_directory

KEEPER = "scratch_keeper.py testbed-test-"
HOLD = """
import sys, time
from testbed.scratch import scratch_directory
with scratch_directory("testbed-test-") as path:
    (path / "file").write_text("x")
    print(path, flush=True)
    for _ in range(600):  # short, as Python hears of a signal that comes just before a sleep when that is over
        time.sleep(0.1)
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_goes_with_a_killed_process(sent: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    path = Path(process.stdout.readline().decode().strip())
    assert (path / "file").read_text() == "x"
    process.send_signal(sent)
    process.communicate(timeout=60)
    wait_until(lambda: not path.exists(), f"{path} is left")


def test_it_goes_at_the_end_of_the_body() -> None:
    with scratch_directory("testbed-test-") as path:
        assert path.parent == Path(tempfile.gettempdir())
        (path / "inner").mkdir()
    assert not path.exists()


def test_it_goes_where_its_keeper_was_killed() -> None:
    with scratch_directory("testbed-test-") as path:
        (path / "inner").mkdir()
        (keeper,) = (one for one in descendants(os.getpid()) if KEEPER in command_line(one))
        os.kill(keeper, signal.SIGKILL)
    assert not path.exists()


def test_no_place_for_it() -> None:
    with pytest.raises(RunFailed, match="no temporary directory"), scratch_directory("no/such/place-"):
        pass


def test_an_empty_directory_elsewhere_goes_with_a_killed_process(tmp_path: Path) -> None:
    code = (
        "import os, signal, tempfile\n"
        "from pathlib import Path\n"
        "from testbed.scratch import remove_at_the_end, scratch_directory\n"
        "with scratch_directory('testbed-') as scratch:\n"
        "    tempfile.tempdir = str(scratch)\n"
        f"    group = Path({str(tmp_path / 'group')!r})\n"
        "    remove_at_the_end(group)\n"
        "    group.mkdir()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    wait_until(lambda: not (tmp_path / "group").exists(), "the directory is left")
