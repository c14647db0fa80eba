"""A temporary directory that goes when its process does, however that ends: `kill -9` leaves nothing of it."""

from __future__ import annotations

import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.errors import RunFailed

_DEADLINE_S = 30.0

_LIST = "removed-too"
"""Of scratch_keeper.py: directories elsewhere that go with a scratch directory."""


def remove_at_the_end(directory: Path) -> None:
    """Have an empty directory, yet to be made, go with the scratch directory that is the place of temporary files here.

    Elsewhere that is for the caller alone.
    """
    scratch = Path(tempfile.gettempdir())
    if (scratch / _LIST).exists():
        with (scratch / _LIST).open("a", encoding="utf-8") as listed:
            listed.write(f"{directory}\n")


@contextmanager
def scratch_directory(prefix: str, place: Path | None = None) -> Iterator[Path]:
    """A new directory in `place`, or among the machine's temporary ones, removed at the end with all that is in it.

    A process of its own makes and removes it: it waits for the end of a pipe that the kernel closes with this process
    (and its forks). Raises RunFailed where there is no place for it.
    """
    there = () if place is None else (str(place),)
    keeper = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("scratch_keeper.py")), prefix, *there],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # or Ctrl-C would end it before it has removed anything
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    assert keeper.stderr is not None
    try:
        if not select.select([keeper.stdout], [], [], _DEADLINE_S)[0]:
            keeper.kill()
            raise RunFailed(f"no temporary directory within {_DEADLINE_S:g} s")
        said = keeper.stdout.readline().decode().rstrip("\n")
        if not said:
            reason = keeper.stderr.read().decode(errors="replace").strip().splitlines()
            raise RunFailed(f"no temporary directory: {reason[-1] if reason else 'no reason given'}")
        path = Path(said)
        try:
            yield path
        finally:
            keeper.stdin.close()
            try:
                keeper.wait(timeout=_DEADLINE_S)
            except subprocess.TimeoutExpired:  # a process that we forked lives on, and holds the pipe
                keeper.kill()
            if path.exists():  # who was to remove it has been killed
                shutil.rmtree(path, ignore_errors=True)
    finally:
        for stream in (keeper.stdin, keeper.stdout, keeper.stderr):
            stream.close()
        keeper.wait()
