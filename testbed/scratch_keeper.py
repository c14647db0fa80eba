"""Makes a temporary directory, prints its path, and removes it when standard input ends (started by scratch.py)."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

GONE_S = 5.0


def remove(directory: Path) -> None:
    """An empty directory: a control group is one when its processes have ended, which takes a moment."""
    until = time.monotonic() + GONE_S
    while directory.is_dir() and time.monotonic() < until:
        try:
            directory.rmdir()
        except OSError:
            time.sleep(0.01)


def main() -> None:
    """One directory, from its making to its end, and what is listed in it."""
    path = Path(tempfile.mkdtemp(prefix=sys.argv[1], dir=(*sys.argv[2:], None)[0]))
    listed = path / "removed-too"
    try:
        listed.touch()
        os.write(1, f"{path}\n".encode())
        while os.read(0, 4096):
            pass
    finally:
        for line in listed.read_text(encoding="utf-8").splitlines() if listed.exists() else ():
            remove(Path(line))
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
