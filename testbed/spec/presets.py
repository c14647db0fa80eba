"""The topologies, workloads and studies that come with the testbed, by name, in a checkout and in a wheel."""

from __future__ import annotations

from functools import cache
from itertools import chain
from pathlib import Path

from testbed.errors import nearest

TOPOLOGIES, WORKLOADS, STUDIES = KINDS = ("topologies", "workloads", "studies")
"""The directories of their files: at the top of a checkout, in the package where a wheel was installed (setup.py)."""

_PACKAGE = Path(__file__).parents[1]


@cache
def preset_files(kind: str) -> dict[str, Path]:
    """Name -> file of every preset; `kind` is one of KINDS."""
    installed = _PACKAGE / kind
    directory = installed if installed.is_dir() else _PACKAGE.parent / kind
    return {file.stem: file for file in sorted(directory.glob("*.yaml"))}


def is_preset(path: Path) -> bool:
    """Whether a preset is meant: a name of one, without directory or suffix, and there is no such file."""
    return _preset(path) is not None and not path.is_file()


def located(path: Path) -> Path:
    """The file of the preset that is meant, else the path as it is. An existing file comes before a preset."""
    found = _preset(path)
    return path if found is None or path.is_file() else found


def preset_meant(path: Path) -> str | None:
    """The name of a preset that is near a file's; None where there is none."""
    return nearest(path.name.removesuffix(path.suffix), chain.from_iterable(map(preset_files, KINDS)))


def _preset(path: Path) -> Path | None:
    if len(path.parts) != 1:
        return None
    return next((files[path.name] for files in map(preset_files, KINDS) if path.name in files), None)
