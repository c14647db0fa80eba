"""`python -m testbed` is the testbed command: what must be in order before anything else is imported."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys


def main() -> None:
    """The command's entry point: exits with its code. Ctrl-C is one word, also while everything is imported."""
    _have_standard_streams()
    try:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads, which nothing uses: each spins for 0.1 s
        gc.disable()  # imports leave no garbage, and to look for it takes a tenth of a short command's time
        from testbed.interrupts import persistent_interrupts

        with persistent_interrupts():
            from testbed.cli import run_command

            gc.freeze()
            gc.enable()
            code = run_command()
    except KeyboardInterrupt:  # while something was imported, or in the last moment
        print("interrupted", file=sys.stderr)
        code = 4  # ExitCode.RUN_FAILED, which may not be imported yet
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the interpreter ends, which takes it some milliseconds
    gc.freeze()  # what is left goes with the process: the interpreter need not look for cycles in it
    exec("")  # what KeyboardInterrupt has passed through may have been text: then Python would end by a signal
    sys.exit(code)


def _have_standard_streams() -> None:
    """Where a shell has closed one, nothing else may be opened in its place; writing results to none is an error."""
    for number, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):  # of stdout: every write fails
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)
    if sys.stdout is None:
        sys.stdout = _stream(1)
    if sys.stderr is None:
        sys.stderr = _stream(2)


def _stream(descriptor: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.FileIO(descriptor, "w", closefd=False), write_through=True)


if __name__ == "__main__":  # not where a process that generates schedules imports it
    main()
