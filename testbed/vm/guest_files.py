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

import sys
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
