"""The link gate: what follows when links are measured before a run and are not as asked.

A disturbed machine spoils measurements of links that are right. So the gate shows what the machine did meanwhile, waits
for quiet for a bounded time, and measures again. Links that are still off leave a run that goes on untrusted, with
their reasons, or none if it has to be strict. A link that carries no probes is broken: there is nothing to run on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.errors import RunFailed
from testbed.lab.calibrate import LinkCheck, calibrate
from testbed.lab.disturbance import Disturbance, look, wait_for_quiet
from testbed.lab.host_settings import real_time
from testbed.lab.lab import Lab
from testbed.thresholds import QUIET_LIMIT_S


@dataclass(frozen=True)
class Gate:
    """The checks of all directions, and what was seen of the machine while the gate waited for quiet."""

    checks: tuple[LinkCheck, ...]
    waited: tuple[Disturbance, ...] = ()

    def reasons(self) -> list[str]:
        """Why a run over these links is untrusted: a line for each direction that is not as asked."""
        return [_reason(check) for check in self.checks if not check.ok]

    def as_json(self) -> dict[str, Any]:
        """The content of links.json."""
        return {
            "links": [check.as_json() for check in self.checks],
            "waited_for_quiet": [seen.as_json() for seen in self.waited],
        }

    def summary(self) -> dict[str, Any]:
        """What the manifest says."""
        return {
            "as_asked": all(check.ok for check in self.checks),
            "reasons": self.reasons(),
            "attempts": {check.label: check.attempts for check in self.checks},
            "waited_for_quiet_s": sum(seen.seconds for seen in self.waited),
        }


def measure(lab: Lab, *, progress: Callable[[str], None] | None = None, say: Callable[[str], None]) -> Gate:
    """Measure every link; if one is off, wait for a quiet machine and measure it again. `say` hears lines that stay."""
    checks = calibrate(lab, progress=progress)
    tell_notes(lab, checks, say)
    if all(check.ok for check in checks) or any(check.broken for check in checks):
        return Gate(tuple(checks))
    for check in checks:
        if not check.ok:
            say(_reason(check))
    say(f"waiting for a quiet machine, up to {QUIET_LIMIT_S:g} s ...")

    def tell(seen: Disturbance, left_s: float) -> None:
        say(f"  {'quiet' if seen.quiet else 'disturbed'}: {seen}; {left_s:.0f} s left")

    with real_time(lab.real_time_workers):  # as the probes are
        waited = wait_for_quiet(QUIET_LIMIT_S, lambda: look(lab.carriers()), _now_and_then(tell))
    return Gate(tuple(calibrate(lab, progress=progress, again=checks)), waited)


def refuse(lab: Lab, gate: Gate, *, strict: bool) -> None:
    """Raises RunFailed for links that carry no probes, and if `strict` for any that is not as asked."""
    if broken := [check for check in gate.checks if check.broken]:
        raise RunFailed(f"links carry no probes ({lab.shaper_name}): {_listed(broken)}")
    if strict and (bad := [check for check in gate.checks if not check.ok]):
        raise RunFailed(f"the links are not as asked ({lab.shaper_name}), and --strict was given: {_listed(bad)}")


def warn(gate: Gate, say: Callable[[str], None], *, virtual: bool) -> None:
    """What a user should know of links that are off, and do about it; `virtual`: on that clock they are already."""
    if reasons := gate.reasons():
        for reason in reasons:
            say(f"warning: {reason}")
        advice = "" if virtual else " What --clock virtual measures does not depend on this machine."
        say(f"The run goes on, untrusted.{advice}")


def _reason(check: LinkCheck) -> str:
    meanwhile = ""
    if check.machine is not None:
        calm = "quiet (so the link itself may be off): " if check.machine.quiet else ""
        meanwhile = f" ({check.attempts} attempts; meanwhile the machine: {calm}{check.machine})"
    return f"link {check.label} is not as asked: {'; '.join(check.reasons)}{meanwhile}"


def _listed(checks: Sequence[LinkCheck]) -> str:
    return " | ".join(f"{check.label}: {'; '.join(check.reasons)}" for check in checks)


def tell_notes(lab: Lab, checks: Sequence[LinkCheck], say: Callable[[str], None]) -> None:
    """Say what was noted of network cards, of one for every datacenter."""
    found: dict[str, str] = {}
    for check in checks:
        if check.direction >= len(lab.directions) and check.notes:
            found.setdefault(lab.cards[check.direction - len(lab.directions)].target, check.notes[0])
    for datacenter, note in found.items():
        say(f"note on {datacenter}: {note}")


_TELL_EVERY_S = 2.0


def _now_and_then(tell: Callable[[Disturbance, float], None]) -> Callable[[Disturbance, float], None]:
    """`tell`, but not for every look: one line about every other second, and the first."""
    last: list[float] = []

    def sometimes(seen: Disturbance, left_s: float) -> None:
        if not last or last[-1] - left_s >= _TELL_EVERY_S:
            last.append(left_s)
            tell(seen, left_s)

    return sometimes
