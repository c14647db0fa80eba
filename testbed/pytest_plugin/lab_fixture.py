"""A live lab for a test: its process holds the lab in a sandbox, and does there what the test asks for."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from testbed.errors import BadInput, RunFailed
from testbed.pytest_plugin.fixtures import error_of

_BUILD_DEADLINE_S = 600.0
_MEASURE_DEADLINE_S = 900.0
_ANSWER_GRACE_S = 30.0
_END_DEADLINE_S = 30.0
_MOST_SAID = 4000
"""Characters of what a program, or the lab's process, wrote, for a report."""


class LiveLab:
    """A lab of a topology, as a context manager: containers, shaped links and routes, until it is left.

    Entering it raises BadInput for a topology that is none, MachineLacks where the machine cannot build a lab, and
    RunFailed where it was not built. Files are named from the directory `root`; `settings` are those of `--set`, of the
    topology; `log` is a file for what building says, and `show` takes title and text of what was run in the lab.
    """

    def __init__(
        self,
        root: Path,
        topology: str | Path,
        shaper: str,
        settings: Sequence[str],
        log: Path,
        show: Callable[[str, str], None],
    ) -> None:
        for setting in settings:
            if not setting.startswith("topology."):
                raise BadInput.of("lab", "settings", setting, "settings of the topology: topology.KEY=VALUE")
        self._root, self._show = root, show
        self._asked = {"topology": str(topology), "shaper": shaper, "settings": list(settings)}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._requests, self._answers = -1, -1
        self._left_over = b""
        self.nodes: tuple[str, ...] = ()
        """Every node, such as "paris/0"."""
        self.routers: tuple[str, ...] = ()
        """Of every datacenter and switch, by its name."""
        self.shaper = ""
        """What gives links their delay and rate."""
        self._addresses: Mapping[str, str] = {}

    def __enter__(self) -> Self:
        __tracebackhide__ = True
        try:
            self._start()
            built = self._answer(_BUILD_DEADLINE_S)
        except BaseException:
            self._end()
            raise
        self.nodes, self.routers = tuple(built["nodes"]), tuple(built["routers"])
        self.shaper, self._addresses = built["shaper"], built["addresses"]
        return self

    def _start(self) -> None:
        theirs_read, self._requests = os.pipe()
        self._answers, theirs_write = os.pipe()
        line = [sys.executable, "-P", "-m", "testbed.pytest_plugin.lab_process"]
        line += [json.dumps(self._asked), str(theirs_read), str(theirs_write)]
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    line,
                    cwd=self._root,
                    pass_fds=(theirs_read, theirs_write),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
        finally:
            os.close(theirs_read)
            os.close(theirs_write)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def address(self, name: str) -> str:
        """The IPv4 address of a node ("paris/0") or a router ("paris"). Raises BadInput for another name."""
        self._require_place(name)
        return self._addresses[name]

    def run(self, place: str, *command: str, deadline_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a program in a node or router, without a shell; what it wrote and its exit code, whatever that is.

        Raises BadInput for a place that is none, RunFailed where the program takes longer, or a part of the lab ends.
        """
        self._require_place(place)
        if not command:
            raise BadInput.of("lab", "command", command, "a program and its arguments")
        asked = {"do": "run", "place": place, "command": list(command), "deadline_s": deadline_s}
        answer = self._ask(asked, deadline_s + _ANSWER_GRACE_S)
        said = f"{answer['stdout']}{answer['stderr']}"[-_MOST_SAID:]
        self._show(f"{place}: {' '.join(command)}", f"{said}exit code {answer['code']}")
        return subprocess.CompletedProcess(list(command), answer["code"], answer["stdout"], answer["stderr"])

    def measure(self) -> list[dict[str, Any]]:
        """Every direction of every link measured: `asked`, `measured`, `ok`, `reasons` as in links.json. Takes seconds.

        Raises RunFailed.
        """
        links: list[dict[str, Any]] = self._ask({"do": "measure"}, _MEASURE_DEADLINE_S)["links"]
        lines = [f"{link['label']}: {'; '.join(link['reasons']) or 'as asked'}" for link in links]
        self._show("links measured", "\n".join(lines))
        return links

    def _require_place(self, name: str) -> None:
        __tracebackhide__ = True
        if name not in self._addresses:
            raise BadInput.of("lab", "place", name, f"one of {', '.join(self._addresses)}")

    def _ask(self, request: Mapping[str, Any], deadline_s: float) -> Any:
        __tracebackhide__ = True
        if self._process is None:
            raise RunFailed("the lab is not there: it lives inside `with`, or until the end of the test")
        try:
            os.write(self._requests, json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise self._ended() from None
        return self._answer(deadline_s)

    def _answer(self, deadline_s: float) -> Any:
        __tracebackhide__ = True
        until = time.monotonic() + deadline_s
        while b"\n" not in self._left_over:
            left_s = until - time.monotonic()
            if left_s <= 0 or not select.select([self._answers], [], [], left_s)[0]:
                self._end()  # a late answer would be taken for that of the next question
                raise RunFailed(f"the lab did not answer within {deadline_s:g} s")
            part = os.read(self._answers, 65536)
            if not part:
                raise self._ended()
            self._left_over += part
        line, _, self._left_over = self._left_over.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise RunFailed(answer["error"])
        return answer

    def _ended(self) -> Exception:
        assert self._process is not None
        code = self._process.wait(timeout=_END_DEADLINE_S)
        return error_of(code, self._log.read_text(encoding="utf-8", errors="replace")[-_MOST_SAID:], "lab")

    def _end(self) -> None:
        """Let the process know that nothing more is asked: the lab goes with it."""
        for end in (self._requests, self._answers):
            if end >= 0:
                os.close(end)
        self._requests, self._answers = -1, -1
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(timeout=_END_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()  # its sandbox ends with it
                process.wait()
