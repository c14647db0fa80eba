"""`testbed kernel`: building the kernel of the virtual clock, and what a built one depends on."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from testbed.cli.options import AsJson, Quiet, emit

kernel_app = typer.Typer(help="The kernel of the virtual clock.", no_args_is_help=True)


class KernelSource(StrEnum):
    """Which of Debian's kernel sources to build from."""

    auto = "auto"
    backported = "7.2"
    installed = "6.12"


SourceOption = Annotated[
    KernelSource, typer.Option(help="7.2: Debian's backport, downloaded; 6.12: installed; auto: 7.2, else 6.12.")
]


@kernel_app.command("build")
def kernel_build(
    source: SourceOption = KernelSource.auto,
    jobs: Annotated[int | None, typer.Option(min=1, max=1000, help="Compilers at once; default: all CPUs.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Build the time-travel kernel from Debian's source, unless it is there. About 10 CPU-minutes, 2 GB while at it."""
    from testbed.cli.progress import Terminal
    from testbed.vm import kernel

    built, now = kernel.build(Terminal(quiet=quiet), series=_series(source), jobs=jobs)
    if as_json:
        emit({**built.as_json(), "path": str(built.path), "built_now": now})
    else:
        print(f"{built.path} ({'built' if now else 'was there'}, from Debian's source {built.source_version})")


@kernel_app.command("key")
def kernel_key(source: SourceOption = KernelSource.auto, as_json: AsJson = False) -> None:
    """Print what a built kernel depends on, as the key of a cache: where it is the same, the kernel need not be built.

    With --json also the directory to be cached, and what the key is made of.
    """
    from testbed.vm import kernel

    key = kernel.cache_key(_series(source))
    if as_json:
        parts = {"architecture": key.architecture, "libc": key.libc, "recipes": dict(key.recipes)}
        emit({"key": key.text, "directory": str(kernel.cache_directory()), **parts})
    else:
        print(key.text)


def _series(source: KernelSource) -> str | None:
    return None if source is KernelSource.auto else source.value
