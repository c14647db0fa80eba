"""Lays out what a guest sees: this machine's files, and what it runs at paths that no user or checkout decides.

    /                      the machine's own, read-only
    /testbed/source        a frozen copy of the package
    /testbed/base          the Python installation
    /testbed/prefix        its virtual environment, with all packages
    /testbed/environment   the same environment, as if it had been made there: what the guest runs

A path is input of a guest in virtual time: the kernel draws its random numbers from its command line as well, and every
directory of a search path in which a file is missing costs a microsecond.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from testbed import source
from testbed.errors import MachineLacks
from testbed.lab import namespaces as ns

TOP = "testbed"
SOURCE = f"/{TOP}/source"
PACKAGE = f"{SOURCE}/{source.PACKAGE.name}"
PYTHON = f"/{TOP}/environment/bin/python"
SEARCH_PATH = ":".join(
    (
        f"/{TOP}/environment/bin",
        f"/{TOP}/prefix/bin",
        *("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"),
    )
)
"""Where a guest looks for programs."""

_MOUNTED_IN_GUEST = ("proc", "sys", "run")
"""The guest mounts its own there before it looks for anything."""


def lay_out(root: Path, copy: Path | None) -> None:
    """Make the guest's root, a read-only directory. In a mount namespace of our own, as its root.

    `copy` has the package, frozen for SOURCE; None: it is frozen now.

    Raises RunFailed when a file of the package does not compile, MachineLacks for a Python outside its installation.
    """
    root.mkdir()
    ns.mount("testbed-root", str(root), "tmpfs")
    _machine(root)
    top = root / TOP
    top.mkdir()
    if copy is None:
        source.freeze(top / "source", guest_path=PACKAGE)
    else:
        ns.bind(copy, top / "source")
    _python(top)
    ns.make_read_only(str(root))


_HOMES = (Path("/root"), Path("/home"))
_SECRET_FILES = ("etc/shadow*", "etc/gshadow*", "etc/ssh/*_key", "etc/sudoers", "etc/krb5.keytab")
_SECRET_DIRECTORIES = ("etc/ssl/private", "run/secrets", "var/run/secrets", "etc/sudoers.d")


def hide_secrets() -> None:
    """In a read-only mount namespace of our own: homes and the machine's secrets are empty from now on.

    A guest's root may mount any path of this namespace, so it is here that they must not be. Of a home there is left
    what a guest is made of, where that lies in it: Python, its environment, this package.
    """
    needed = [Path(place).resolve() for place in (sys.base_prefix, sys.prefix, source.PACKAGE)]
    # Python's own shared library: a copied installation takes that of where it was built
    needed += [place for place in _libraries_of_python() if not any(place.is_relative_to(one) for one in needed)]
    for home in dict.fromkeys((*_HOMES, Path(os.environ.get("HOME") or "/").resolve())):
        if home.is_dir() and home != Path("/") and not any(home.is_relative_to(place) for place in needed):
            _hide(home, [place for place in needed if place.is_relative_to(home)])
    for pattern in _SECRET_DIRECTORIES:
        for directory in Path("/").glob(pattern):
            if directory.is_dir():
                _hide(directory, [])
    for pattern in _SECRET_FILES:
        for file in Path("/").glob(pattern):
            if file.is_file():
                ns.mount("/dev/null", str(file), "none", ns.MS_BIND)


def _libraries_of_python() -> list[Path]:
    """Directories of the shared libraries of Python that this process has loaded; none where it is one program."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    files = {Path(line.split(maxsplit=5)[5]) for line in lines if "/libpython" in line}
    return sorted({file.parent for file in files})


def _hide(directory: Path, kept: Sequence[Path]) -> None:
    """Put an empty directory over another, and back into it what is `kept`."""
    there = {place: os.open(place, os.O_PATH | os.O_DIRECTORY) for place in kept}
    ns.mount("testbed-hidden", str(directory), "tmpfs")
    for place in sorted(there):
        place.mkdir(parents=True, exist_ok=True)
        ns.mount(f"/proc/self/fd/{there[place]}", str(place), "none", ns.MS_BIND | ns.MS_REC)
        os.close(there[place])
    ns.make_read_only(str(directory))


def _machine(root: Path) -> None:
    """Everything at the top of this machine's file system, under its own name."""
    # /dev first: `root` lies in it, and is seen there as it is now
    for original in sorted(Path("/").iterdir(), key=lambda path: (path.name != "dev", path.name)):
        name, here = original.name, root / original.name
        if name == TOP:
            continue
        if original.is_symlink():
            here.symlink_to(original.readlink())
        elif name in _MOUNTED_IN_GUEST:
            here.mkdir()
        elif original.is_dir() or original.is_file():
            ns.bind(original, here)


def _python(top: Path) -> None:
    """This interpreter and its environment."""
    base, prefix = Path(sys.base_prefix), Path(sys.prefix)
    program = Path(sys.executable).resolve()
    if not program.is_relative_to(base.resolve()):
        raise MachineLacks(f"the Python that runs this ({program}) does not lie in its installation, {base}")
    ns.bind(base, top / "base")
    ns.bind(prefix, top / "prefix")
    environment = top / "environment"
    (environment / "bin").mkdir(parents=True)
    within = program.relative_to(base.resolve())
    (environment / "bin/python").symlink_to(f"/{TOP}/base/{within}")
    for name in ("lib", "lib64"):
        if (prefix / name).is_dir():
            (environment / name).symlink_to(f"/{TOP}/prefix/{name}")
    if prefix != base:
        system = "true" if _sees_system_packages(prefix) else "false"
        (environment / "pyvenv.cfg").write_text(
            f"home = /{TOP}/base/{within.parent}\ninclude-system-site-packages = {system}\n", encoding="utf-8"
        )
    empty = environment / "empty.pth"
    empty.touch()
    for path in _links_to_checkout():
        if path.is_relative_to(prefix):
            ns.bind(empty, top / "prefix" / path.relative_to(prefix))


def _sees_system_packages(prefix: Path) -> bool:
    lines = (prefix / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("=") for line in lines)
    return any(key.strip() == "include-system-site-packages" and value.strip() == "true" for key, _, value in pairs)


def _links_to_checkout() -> list[Path]:
    """What an installation for development adds to the environment: where the checkout lies, read by every Python."""
    try:
        files = distribution("testbed").files or []
    except PackageNotFoundError:
        return []
    return [Path(str(file.locate())) for file in files if file.suffix == ".pth"]
