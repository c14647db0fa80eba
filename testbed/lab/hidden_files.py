"""Hides homes and secrets of this machine in a mount namespace of our own, from whoever may look into that."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from testbed import source
from testbed.lab import namespaces as ns

_HOMES = (Path("/root"), Path("/home"))
_SECRET_FILES = ("etc/shadow*", "etc/gshadow*", "etc/ssh/*_key", "etc/sudoers", "etc/krb5.keytab")
_SECRET_DIRECTORIES = ("etc/ssl/private", "run/secrets", "var/run/secrets", "etc/sudoers.d")


def hide_secrets(kept: Sequence[Path] = ()) -> None:
    """In a mount namespace of our own: homes and the machine's secrets are empty from now on. Raises OSError.

    Of a home there is left what is `kept`, and what the testbed is made of, where that lies in it: Python, its
    environment, this package.
    """
    needed = [*kept, *what_is_read()]
    for home in homes():
        if not any(home.is_relative_to(place) for place in needed):
            hide(home, needed)
    for secret in secrets():
        if secret.is_dir():
            hide(secret, [])
        else:
            ns.mount("/dev/null", str(secret), "none", ns.MS_BIND)


def homes() -> list[Path]:
    """Those of this machine, and of whoever runs this."""
    every = dict.fromkeys((*_HOMES, Path(os.environ.get("HOME") or "/").resolve()))
    return [home for home in every if home.is_dir() and home != Path("/")]


def secrets() -> list[Path]:
    """The directories and the files of this machine that hold keys and passwords."""
    directories = (place for pattern in _SECRET_DIRECTORIES for place in Path("/").glob(pattern) if place.is_dir())
    files = (place for pattern in _SECRET_FILES for place in Path("/").glob(pattern) if place.is_file())
    return [*directories, *files]


def what_is_read() -> list[Path]:
    """Where that lies which a Python process of the testbed reads while it runs: Python, its environment, this package.

    What it has loaded as it began, Python's own library, it needs no more.
    """
    return [Path(place).resolve() for place in (sys.base_prefix, sys.prefix, source.PACKAGE)]


def libraries_of_python() -> list[Path]:
    """Directories of the shared libraries of Python that this process has loaded; none where it is one program.

    A copied installation takes that of where it was built.
    """
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    files = {Path(line.split(maxsplit=5)[5]) for line in lines if "/libpython" in line}
    return sorted({file.parent for file in files})


def hide(directory: Path, kept: Iterable[Path], options: str | None = None) -> None:
    """Put an empty directory over another, and back into it what of it is `kept`; read-only. Raises OSError.

    With `options` (of tmpfs) it stays writable.
    """
    below = sorted(place for place in kept if place.is_relative_to(directory))
    # of two of which one lies in the other, the first brings the second along
    tops = [place for place in below if not any(other in place.parents for other in below)]
    there = {place: os.open(place, os.O_PATH) for place in tops}
    ns.mount("testbed-hidden", str(directory), "tmpfs", options=options)
    for place, fd in there.items():
        original = Path(f"/proc/self/fd/{fd}")
        place.parent.mkdir(parents=True, exist_ok=True)
        ns.bind(original, place)
        os.close(fd)
    if options is None:
        ns.make_read_only(str(directory))
