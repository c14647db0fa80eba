"""`testbed guest`: a guest of the virtual clock that is kept between commands, which measure in copies of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed import extras
from testbed.cli.options import AsJson, Quiet, emit, quantity
from testbed.errors import BadInput
from testbed.units import SIZE, TIME, show_size, show_time

if TYPE_CHECKING:
    from testbed.vm.kept_guest import KeptGuest

guest_app = typer.Typer(help="A guest of the virtual clock that is kept between commands.", no_args_is_help=True)

_IDLE, _MEMORY = "600 s", "4 GiB"
_LEAST_MEMORY, _LEAST_IDLE_S = 2 * 2**30, 1.0


@guest_app.command("start")
def guest_start(
    idle: Annotated[str, typer.Option(metavar="TIME", help="It ends when nobody has used it for so long.")] = _IDLE,
    guest_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="A plan needs 2 GiB, 192 MiB for each rank, and room for its messages.")
    ] = _MEMORY,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, metavar="N", help="Of the runs that can use it.")] = 1,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Boot a guest and keep it: runs on the virtual clock measure in copies of it, with the same nanoseconds.

    It takes the place of one that is kept already, and 0.5 GB of memory, but no CPU while nothing runs.
    """
    from testbed.cli.progress import Terminal
    from testbed.vm import kept_guest
    from testbed.vm.guest_machine import memory_of_machine

    extras.require("train")
    idle_s = quantity("--idle", idle, TIME, "a time")
    if idle_s < _LEAST_IDLE_S:
        raise BadInput.of("--idle", "option", idle, f"{show_time(_LEAST_IDLE_S)} or more")
    memory_bytes = quantity("--guest-memory", guest_memory, SIZE, "a size")
    usual = quantity("--guest-memory", _MEMORY, SIZE, "a size")
    most = max(memory_of_machine(), usual)  # what is not touched costs nothing
    if not _LEAST_MEMORY <= memory_bytes <= most:
        expected = f"2 GiB to {most / 2**30:.1f} GiB on this machine"
        raise BadInput.of("--guest-memory", "option", guest_memory, expected)
    reporter = Terminal(quiet=quiet)
    if (there := kept_guest.find()) is not None:
        reporter.say("ending the guest that is kept now ...")
        there.stop()
    with reporter.step("booting a guest, and importing in it"):
        status = kept_guest.started(seed, idle_s, round(memory_bytes / 2**20))
    _show(status, as_json)


@guest_app.command("stop")
def guest_stop(as_json: AsJson = False) -> None:
    """End the guest that is kept, and what runs in copies of it. Exit code 0 also where none is."""
    there = _kept()
    if there is not None:
        there.stop()
    if as_json:
        emit({"stopped": there is not None})
    else:
        print("no guest is kept" if there is None else "stopped")


@guest_app.command("status")
def guest_status(as_json: AsJson = False) -> None:
    """Say whether a guest is kept, and what it does."""
    _show(kept_now(), as_json)


def _kept() -> KeptGuest | None:
    from testbed.vm import kept_guest

    return kept_guest.find()


def kept_now() -> dict[str, Any] | None:
    """The status of the guest that this user keeps, if there is one. Raises RunFailed."""
    there = _kept()
    if there is None:
        return None
    try:
        return there.status()
    finally:
        there.close()


def words_of(status: Mapping[str, Any]) -> str:
    """What is kept, and what it does, in one line."""
    ends = status["ends_in_s"]
    waiting = f", {status['waiting']} waited for" if status.get("waiting") else ""  # earlier keepers do not say
    when = "in use" if ends is None else f"ends after {show_time(round(ends))} more without use"
    return (
        f"a guest is kept, seed {status['is']['seed']}, {show_size(status['memory_bytes'])} of memory; {when}; "
        f"copies: {status['copies']}, of which {status['running']} at work{waiting}"
    )


def _show(status: dict[str, Any] | None, as_json: bool) -> None:
    if as_json:
        emit({"kept": status is not None, **(status or {})})
    else:
        print("no guest is kept; testbed guest start keeps one" if status is None else words_of(status))
