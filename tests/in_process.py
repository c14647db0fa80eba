"""The command line called in this process: what another would say, without the second that starting one takes."""

from __future__ import annotations

import io
import os
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from testbed.cli import main

ROOT = Path(__file__).parents[1]


class Done(NamedTuple):
    """Named as in subprocess.CompletedProcess."""

    returncode: int
    stdout: str
    stderr: str


def run_testbed(*arguments: str | Path, directory: Path = ROOT, **environment: str) -> Done:
    """`testbed` with these arguments, from the repository's root or elsewhere; what it raises is raised here."""
    out, errors, code = io.StringIO(), io.StringIO(), 0
    words = patch.object(sys, "argv", ["testbed", *map(str, arguments)])
    with words, patch.dict(os.environ, environment), redirect_stdout(out), redirect_stderr(errors), chdir(directory):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Done(code, out.getvalue(), errors.getvalue())
