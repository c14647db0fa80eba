"""How a guest is ended early: it looks for Ctrl-C often, its last word is enough, half-written files go."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from testbed.files import remove_partial
from testbed.vm import kernel_process
from testbed.vm.guest_request import FINISHED, INTERRUPT_FILE, REPORT_FILE, GuestProgress

ONE_TASK = """
import os, signal, sys, time
from testbed.vm import guest

class Told:
    def say(self, event, processes=()):
        print(event)

def sleeping(turns, job, reporter):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    time.sleep(60)
    os._exit(0)

guest.request.JOB_DIRECTORY, guest._task = sys.argv[1], sleeping
print(guest._run_task(guest._Turns(1), None, Told()))
"""


def test_process_1_sees_an_interrupt_before_it_is_time_for_its_next_heartbeat(tmp_path: Path) -> None:
    (tmp_path / INTERRUPT_FILE).touch()
    command = [sys.executable, "-c", ONE_TASK, str(tmp_path)]  # apart: process 1 reaps whatever child there is
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [str(-signal.SIGINT)]  # the task was ended, and no heartbeat came before that


def test_nobody_waits_for_a_guest_that_has_said_its_last_word(tmp_path: Path) -> None:
    kernel = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert not ended_by(kernel, tmp_path, [], grace_s=0.05)
        assert not ended_by(kernel, tmp_path, ["alive"], grace_s=0.05)
        assert ended_by(kernel, tmp_path, ["alive", FINISHED], grace_s=600.0)  # long before it has powered off
        assert kernel.poll() is None
    finally:
        kernel.kill()
        kernel.wait()


def ended_by(kernel: subprocess.Popen[bytes], job: Path, events: list[str], grace_s: float) -> bool:
    """Whether the guest's reports, not the time limit, ended the wait."""
    lines = [GuestProgress(event, 1.0, 0, ()).as_json() + "\n" for event in events]
    (job / REPORT_FILE).write_text("".join(lines))
    watch = kernel_process.Watch(job, 0, lambda _: None)
    kernel_process.await_last_word(kernel, watch, time.monotonic(), grace_s)
    return watch.finished()


def test_what_a_killed_process_was_writing_goes(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from testbed.files import replacing\n"
        "with replacing(Path(sys.argv[1])) as partial: partial.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    (tmp_path / "logs").mkdir()
    for target in (tmp_path / "messages.parquet", tmp_path / "logs/rank"):
        assert subprocess.run([sys.executable, "-c", script, str(target)], check=False).returncode == -signal.SIGKILL
    (tmp_path / "actions.parquet").touch()
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 3
    remove_partial(tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["actions.parquet"]
