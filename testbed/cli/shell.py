"""`testbed shell`: Mininet's command line in the lab."""

from __future__ import annotations

import typer

from testbed import extras
from testbed.cli import options
from testbed.errors import ExitCode


def shell(
    topology: options.TopologyFile,
    shaper: options.ShaperOption = options.AUTO_SHAPER,
    host_priority: options.HostPriorityOption = None,
) -> None:
    """Open Mininet's command line in the lab, or read its commands from a pipe. Needs root."""
    from testbed.planning.resolve import measurement_of
    from testbed.spec import load_topology

    plan = measurement_of(load_topology(topology))
    extras.require("train")

    def body() -> int:
        from testbed.cli.progress import Terminal
        from testbed.lab.command_line import open_shell
        from testbed.lab.lab import Lab

        say = Terminal(quiet=False).say
        with Lab(
            plan, shaper=shaper, progress=say, host_priority=options.host_priority_of(host_priority, guest=False)
        ) as lab:
            open_shell(lab)
        return ExitCode.OK

    raise typer.Exit(options.in_sandbox(body, interactive=True))
