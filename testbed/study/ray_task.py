"""What runs on a node of a Ray cluster. Sent there as it stands, so of Python's own library only."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

_MARGIN_S = 60.0
_MOST_SAID = 4000


def measure(
    plans: Mapping[str, str], package: bytes, worker: str, shaper: str, limit_s: float
) -> tuple[bytes, int | None, str]:
    """Measure cells, by name the text of their plan.json, with the package in a tar file.

    Returns their directories as a tar file, the exit code of the process that measured them (None: it passed its
    limit), and what it said at its end.
    """
    with TemporaryDirectory(prefix="testbed-cells-") as scratch:
        base, package_at = Path(scratch, "cells"), Path(scratch, "code")
        for name, text in plans.items():
            (base / name).mkdir(parents=True)
            (base / name / "plan.json").write_text(text, encoding="utf-8")
        with tarfile.open(fileobj=io.BytesIO(package)) as archive:
            archive.extractall(package_at, filter="data")
        words = [sys.executable, "-P", "-m", worker, str(base), shaper, str(limit_s), *plans]
        code: int | None = None
        try:
            done = subprocess.run(
                words,
                env={**os.environ, "PYTHONPATH": str(package_at)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=limit_s + _MARGIN_S,
                check=False,
            )
            code, said = done.returncode, done.stderr
        except subprocess.TimeoutExpired as late:
            said = late.stderr or b""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
            for name in plans:
                archive.add(base / name, name)
        return packed.getvalue(), code, said.decode(errors="replace").strip()[-_MOST_SAID:]
