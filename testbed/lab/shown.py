"""Directories that a user shows to a job's code, read-only: which ones may be, where homes and secrets are hidden."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from testbed.errors import BadInput
from testbed.lab.hidden_files import homes, secrets

OPTION = "--show"
_FIELD = "option"
_SYSTEM = tuple(map(Path, ("/dev", "/etc", "/proc", "/run", "/sys", "/var/run")))
_KEYS = (
    *(".aws", ".azure", ".config", ".docker", ".git-credentials", ".gnupg", ".kube", ".netrc", ".npmrc"),
    *(".password-store", ".pgpass", ".pypirc", ".ssh", "id_ecdsa", "id_ed25519", "id_rsa"),
)
"""What keys and passwords lie in."""

_EVERYBODY = 0o005


def require_showable(directories: Iterable[Path], out: Path) -> tuple[str, ...]:
    """The directories, with links resolved, for a run whose results go to `out`. Raises BadInput for one that is none,
    that would show what has to stay hidden, or that workers could not read: they are nobody's users."""
    return tuple(str(_showable(directory, out.resolve())) for directory in directories)


def _showable(directory: Path, out: Path) -> Path:
    try:
        place = directory.resolve(strict=True)
        mode = place.stat().st_mode
        names = {entry.name for entry in place.iterdir()} if place.is_dir() else None
    except (OSError, RuntimeError) as error:
        raise BadInput.of(OPTION, _FIELD, str(directory), f"a directory that can be read ({error})") from error
    if names is None:
        raise BadInput.of(OPTION, _FIELD, str(directory), "a directory")
    for reason in _against(place, names, out):
        raise BadInput.of(OPTION, _FIELD, str(directory), reason)
    if mode & _EVERYBODY != _EVERYBODY:
        expected = f"a directory that everybody may read (chmod o+rx {place}): workers are another user"
        raise BadInput.of(OPTION, _FIELD, str(directory), expected)
    return place


def _against(place: Path, names: Iterable[str], out: Path) -> Iterator[str]:
    """Why a directory with these names in it may not be shown."""
    temporary = {Path(name).resolve() for name in ("/tmp", "/var/tmp", "/dev/shm", tempfile.gettempdir())}
    for hidden in (*homes(), *secrets(), *sorted(temporary)):
        if hidden.is_relative_to(place):
            yield f"a directory that {hidden} does not lie in, which stays hidden"
    for system in _SYSTEM:
        if place.is_relative_to(system.resolve()):
            yield f"a directory outside {system}"
    for home in homes():
        if place.is_relative_to(home):
            dotted = next((part for part in place.relative_to(home).parts if part.startswith(".")), None)
            if dotted is not None:
                yield f"a directory of a home that does not lie in {dotted}: keys are kept in such places"
    if key := next((name for name in _KEYS if name in names), None):
        yield f"a directory without {key}"
    if out.is_relative_to(place):
        yield f"a directory that the results, {out}, do not go to"
