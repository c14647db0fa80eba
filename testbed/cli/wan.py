"""`testbed wan`: one rank of a plan on a machine of its own, as torchrun starts it. Rank 0 ends as `testbed run`."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed import extras
from testbed.cli import options
from testbed.cli.run import Request, named_place, show_ended, show_finished
from testbed.errors import BadInput, ExitCode, RunFailed
from testbed.failure import failed
from testbed.lab.host_settings import HostPriority

if TYPE_CHECKING:
    from testbed.plan.plan import Plan
    from testbed.wan.wan_session import WanRank

_Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Results directory on rank 0's machine; default: in results/.")
]


def wan(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="plan.json, the same on every machine.")],
    out: _Out = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the results in --out.")] = False,
    interface: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Where other machines reach this one; default: what leads to rank 0."),
    ] = None,
    picture: Annotated[bool, typer.Option(help="Draw timeline.svg; the data files hold the same.")] = True,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a plan across real machines, without emulation. torchrun starts it, one process for every rank.

    Nobody has to be root. Rank 0 collects what a run of a lab collects, compares it with the model of the plan's
    topology, and says what of that could be checked without a lab. Before training it measures round trips and rates
    between datacenters beside what the topology says.
    """
    from testbed.planning import file
    from testbed.results.destination import require_place
    from testbed.wan import torchrun_environment
    from testbed.wan.real_networks import require_suitable

    place = torchrun_environment.of_environment(os.environ)
    extras.require("train")
    directory, leads, found, trouble = out or named_place(plan.stem), place.rank == 0, None, ""
    said: int | None = None
    try:  # whoever finds something wrong says so, and has all others hear of it
        found = file.read(plan)
        require_suitable(found, place.world_size)
        if leads:
            require_place(directory, overwrite=overwrite)
    except BadInput as error:
        trouble = str(error)
        said = failed(BadInput(f"rank {place.rank} ({socket.gethostname()}): {error}"))
    from testbed.wan.wan_session import follow, rank_of, tell_others  # now: it imports torch

    mine = rank_of(place, found, interface, trouble)
    if mine.introduction.trouble:
        code = failed(mine.introduction.refusal()) if said is None else said
        tell_others(mine)
        raise typer.Exit(code)
    if not leads:
        follow(mine)
        return
    request = Request(
        directory,
        overwrite,
        shaper="",
        host_priority=HostPriority.off,
        strict=False,
        control=False,
        vm=False,
        wall_limit_s=0.0,
        picture=picture,
        as_json=as_json,
        quiet=quiet,
    )
    raise typer.Exit(_lead(found, mine, request))


def _lead(plan: Plan | None, mine: WanRank, request: Request) -> int:
    from testbed.cli import answer  # noqa: F401 - now: after Ctrl-C there is no time for it
    from testbed.cli.progress import Terminal
    from testbed.results.destination import results_directory
    from testbed.wan.wan_session import lead

    reporter = Terminal(quiet=request.quiet)
    with results_directory(request.directory, overwrite=request.overwrite) as working:
        try:
            document = lead(plan, mine, working, reporter)
        except (RunFailed, KeyboardInterrupt):
            if plan is not None:
                show_finished(plan, working, request)
            raise
        code = ExitCode.UNTRUSTED if any(row["reasons"] for row in document["schedules"]) else ExitCode.OK
        assert plan is not None
        show_ended(plan, working, request, reporter, code)
    return code
