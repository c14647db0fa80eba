"""Boots that all test processes share: each is made by whoever needs it first, and the others read what came of it.

Files that want plans measured are dealt out to a few boots (boot_shares.py), and test processes have the files of one
boot each. Who needs one that another process makes just now makes one that nobody has yet, and then waits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from boot_shares import BOOTS, boot_of
from filelock import FileLock, Timeout
from one_boot import DEADLINE_S, Asked, Measured, train

from testbed.planning import file
from testbed.session.references import trained_from

_ENDED = "ended.json"


class SharedBoots:
    """Of the files of a session, by the names of their modules."""

    def __init__(self, place: Path, modules: Sequence[ModuleType], processes: int) -> None:
        """`place` is a directory of all test processes of the session."""
        self._place, count = place, min(processes, BOOTS)
        numbers = {module: boot_of(Path(str(module.__file__))) % count for module in modules}
        dealt = ([module for module in modules if numbers[module] == number] for number in range(count))
        self._files = [files for files in dealt if files]

    def measured(self, module: ModuleType) -> dict[str, Measured]:
        """What came of the plans that a file asked for, by its names. Raises AssertionError where its boot failed."""
        mine = next(number for number, files in enumerate(self._files) if module in files)
        if not self._make(mine):
            for other in range(len(self._files)):
                self._make(other)
            with FileLock(self._lock(mine), timeout=DEADLINE_S):
                pass
        return self._read(mine, module.__name__)

    def _lock(self, number: int) -> Path:
        return self._place / f"{number}.lock"

    def _make(self, number: int) -> bool:
        """Whether it is there now; not where another process makes it."""
        try:
            with FileLock(self._lock(number), timeout=0):
                directory = self._place / str(number)
                if not (directory / _ENDED).is_file():
                    directory.mkdir()
                    self._boot(directory, self._files[number])
        except Timeout:
            return False
        return True

    def _boot(self, directory: Path, modules: Sequence[ModuleType]) -> None:
        ended: dict[str, object] = {"error": "the process that made this boot was ended"}
        try:
            asked: dict[str, Asked] = {}
            for module in modules:
                (own := directory / module.__name__).mkdir()
                asked |= {f"{module.__name__}: {name}": one for name, one in module.asked(own).items()}
            found = train(directory, dict(sorted(asked.items(), key=lambda item: _lab_and_jobs(item[1]))))
            ended = {
                "names": list(found),
                "documents": [one.document for one in found.values()],
                "said": [one.said for one in found.values()],
            }
        except AssertionError as error:
            ended = {"error": str(error)}
        finally:
            (directory / _ENDED).write_text(json.dumps(ended))

    def _read(self, number: int, name: str) -> dict[str, Measured]:
        directory = self._place / str(number)
        ended: Mapping[str, object] = json.loads((directory / _ENDED).read_text())
        assert "error" not in ended, ended["error"]
        found = {}
        every = zip(ended["names"], ended["documents"], ended["said"], strict=True)  # type: ignore[call-overload]
        for place, (key, document, said) in enumerate(every):
            if key.startswith(f"{name}: "):
                plan = file.read(directory / f"{place}.plan.json")
                found[key.removeprefix(f"{name}: ")] = Measured(plan, document, directory / str(place), said)
        return found


def _lab_and_jobs(asked: Asked) -> str:
    """The same for plans that can have one lab one after another (session/standing_lab.py), if they are neighbours."""
    plan = asked.trained
    lab = asked.shaper, plan.transport, plan.network.nodes, plan.network.switches, plan.network.limits
    return repr((*lab, [(job.name, job.mesh, job.nodes, trained_from(job.workload)) for job in plan.jobs]))
