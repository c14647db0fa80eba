"""Makes a temporary directory, prints its path, and removes it when standard input ends (started by scratch.py)."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile


def main() -> None:
    """One directory, from its making to its end."""
    path = tempfile.mkdtemp(prefix=sys.argv[1], dir=(*sys.argv[2:], None)[0])
    try:
        os.write(1, f"{path}\n".encode())
        while os.read(0, 4096):
            pass
    finally:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
