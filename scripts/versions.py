"""The tests with the oldest or the newest versions that pyproject.toml allows, in an environment made for them.

    python3 scripts/versions.py oldest|newest [PYTEST ARGUMENT ...]

The environment lies in .venv-oldest or .venv-newest and is made anew each time. What is installed is printed before
pytest begins; without arguments it runs all tests that need not run alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEFAULT = ("-m", "not alone", "-q")


def wanted(end: str) -> list[str]:
    """What pip is to install: the first version of each range, or any (then pip takes the newest)."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = document["project"]
    groups = [
        project["dependencies"],
        *project["optional-dependencies"].values(),
        document["dependency-groups"]["test"],
    ]
    asked = list(dict.fromkeys(package for group in groups for package in group))
    return [re.sub(r">=([^,]+),.*", r"==\1", package) if end == "oldest" else package for package in asked]


def main() -> int:
    """Make the environment and run pytest in it; its exit code."""
    if len(sys.argv) < 2 or sys.argv[1] not in ("oldest", "newest"):
        print(__doc__, file=sys.stderr)
        return 2
    end, arguments = sys.argv[1], sys.argv[2:] or DEFAULT
    environment = ROOT / f".venv-{end}"
    python = environment / "bin/python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet"]
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
    subprocess.run([*install, *wanted(end)], check=True)
    subprocess.run([*install, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)], check=True)
    subprocess.run([*pip, "freeze", "--exclude-editable"], check=True)
    return subprocess.run([str(python), "-m", "pytest", *arguments], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
