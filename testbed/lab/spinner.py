"""Keeps one processor from halting: spins at idle priority until its parent ends. Started by host.py, stdlib only.

Arguments: the processor's number, the parent's pid. Says "spinning", or why it may not, in one line on standard output.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

_SET_PARENT_DEATH_SIGNAL = 1
_LEAST_OF_A_SESSION = "19"


def _yield_to_other_sessions() -> None:
    """Where the kernel weighs sessions against each other (autogroup), idle priority counts within one only.

    A spinner would take half a processor from whoever computes in another session. Raises OSError.
    """
    try:
        Path("/proc/self/autogroup").write_text(_LEAST_OF_A_SESSION)
    except FileNotFoundError:
        return  # this kernel does not


def main(cpu: int, parent: int) -> None:
    """Never returns when it may spin and the lab has not ended meanwhile."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the lab, which ends its spinners
    try:
        os.sched_setaffinity(0, {cpu})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        _yield_to_other_sessions()
    except OSError as error:
        _say(str(error.strerror))
        return
    if _say("spinning"):
        while True:
            pass


def _say(line: str) -> bool:
    """Whether the lab still listens: one that was interrupted as it started its spinners has closed their pipes."""
    try:
        os.write(1, f"{line}\n".encode())
    except BrokenPipeError:
        return False
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
