"""A guest that is kept between commands: its copies give a boot's nanoseconds, and outlive nobody; it outlives them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from ordinary_user import UID, as_user
from processes import descendants, wait_until, wait_until_gone, wait_until_removed
from three_ranks import COMPARED, TOPOLOGY, WORKLOAD

from testbed.errors import ExitCode
from testbed.vm import kernel
from testbed.vm.kept_guest import SOCKET, VARIABLE

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]  # a boot takes minutes on a machine that has much to do

ROOT = Path(__file__).parents[2]
LIMIT_S = 300
LONG = ("--iterations", "50000")


class Kept:
    """A guest of its own directory, and commands that may use it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for name, text in (("topology", TOPOLOGY), ("workload", WORKLOAD)):
            (place / f"{name}.yaml").write_text(text)
        (place / "runtime").mkdir()

    def begun(
        self, *words: str, before: Sequence[str] = (), environment: Mapping[str, str] = MappingProxyType({})
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*before, sys.executable, "-P", "-m", "testbed", *words],
            cwd=self.place,
            env={**os.environ, "XDG_RUNTIME_DIR": str(self.place / "runtime"), VARIABLE: "", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def called(
        self, *words: str, before: Sequence[str] = (), environment: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[int, str, str]:
        process = self.begun(*words, before=before, environment=environment)
        try:
            out, said = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
            process.wait()
        return process.returncode, out, said

    def guest(self, *words: str) -> dict[str, Any]:
        code, out, said = self.called("guest", *words, "--json")
        assert code == ExitCode.OK, said
        found: dict[str, Any] = json.loads(out)
        return found

    def run(self, name: str, *more: str) -> list[str]:
        files = ("topology.yaml", "workload.yaml")
        return ["run", *files, "--clock", "virtual", "--no-picture", *more, "--out", name]

    def measured(self, name: str, *more: str, **environment: str) -> str:
        """What a run said, whose results are there."""
        code, _, said = self.called(*self.run(name, "--quiet", *more), environment=environment)
        assert code == ExitCode.OK, said
        return said

    def copy(self, name: str) -> int | None:
        """The how many-th copy a run was measured in."""
        manifest = json.loads((self.place / name / "manifest.json").read_text())
        number: int | None = manifest.get("kept_guest", {}).get("copy")
        return number

    def times(self, name: str) -> list[bytes]:
        return [(self.place / name / file).read_bytes() for file in COMPARED]

    @contextmanager
    def training(self, name: str) -> Iterator[subprocess.Popen[str]]:
        """A run in a copy that trains and would go on for long."""
        process = self.begun(*self.run(name, *LONG))
        try:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if line.startswith("training zb-h1"):
                    break
            else:
                raise AssertionError("".join(said))
            assert self.guest("status")["running"] == 1
            yield process
        finally:
            process.kill()
            process.communicate(timeout=LIMIT_S)


@pytest.fixture(scope="module")
def kept(time_travel_kernel: kernel.Kernel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    made = Kept(tmp_path_factory.mktemp("kept"))
    made.guest("start", "--quiet")
    try:
        made.measured("booted", **{VARIABLE: "no"})
        yield made
    finally:
        made.called("guest", "stop")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def copies_below(process: int) -> Mapping[int, str]:
    """Kernels of guests below a process, by their parents' being keepers."""
    found = {}
    for pid in descendants(process):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"root=/dev/root" in words:
            found[pid] = words[0].decode()
    return found


def test_copies_give_the_nanoseconds_of_a_boot(kept: Kept) -> None:
    assert kept.copy("booted") is None
    first = kept.guest("status")["copies"]
    for number in (1, 2):
        assert kept.measured(f"copy-{number}") == ""
        assert kept.copy(f"copy-{number}") == first + number
        assert kept.times(f"copy-{number}") == kept.times("booted")


def test_two_at_once_have_a_copy_each(kept: Kept) -> None:
    both = [kept.begun(*kept.run(f"both-{n}", "--quiet")) for n in range(2)]
    for process in both:
        _, said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == ExitCode.OK, said
    assert kept.copy("both-0") != kept.copy("both-1")
    assert kept.times("both-0") == kept.times("both-1") == kept.times("booted")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_who_goes_takes_the_copy_along_and_leaves_the_guest(kept: Kept, number: signal.Signals) -> None:
    name, before = f"ended-{number.name}", kept.guest("status")
    with kept.training(name) as process:
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
        if number != signal.SIGKILL:
            assert process.returncode == ExitCode.RUN_FAILED
            assert said.strip().endswith("interrupted")
            assert (kept.place / name / "manifest.json").is_file()
            assert not list((kept.place / name).rglob(".*.partial*")), "a file that was being written is left"
        wait_until(lambda: kept.guest("status")["running"] == 0, "a copy goes on", 30)
    after = kept.guest("status")
    assert after["process"] == before["process"]
    assert len(copies_below(after["process"])) == 1
    wait_until_removed(lambda: Path("/dev/shm").glob("testbed-guest-*"), LIMIT_S)
    kept.measured(f"after-{number.name}")
    assert kept.times(f"after-{number.name}") == kept.times("booted")


def test_a_copy_that_dies_is_an_error_and_no_harm_to_the_guest(kept: Kept) -> None:
    keeper = kept.guest("status")["process"]
    (original,) = copies_below(keeper)
    with kept.training("dead") as process:
        (copy,) = set(copies_below(keeper)) - {original}
        os.kill(copy, signal.SIGKILL)
        _, said = process.communicate(timeout=30)
    assert process.returncode == ExitCode.RUN_FAILED
    assert "error: the guest's kernel ended before its work did" in said
    kept.measured("after-dead")
    assert kept.times("after-dead") == kept.times("booted")


def test_a_guest_that_is_stopped_before_it_answers_is_ended(tmp_path: Path, time_travel_kernel: kernel.Kernel) -> None:
    own = Kept(tmp_path)
    keeper = own.guest("start", "--quiet")["process"]
    below = descendants(keeper)
    (init,) = [pid for pid in below if parent(pid) == keeper]
    for pid in below - {init}:
        os.kill(pid, signal.SIGSTOP)
    code, _, said = own.called(*own.run("stopped", "--quiet"))
    assert code == ExitCode.RUN_FAILED
    assert "the kept guest did not answer within 5 s: it is ended" in said
    wait_until_gone({keeper, *below})
    assert own.guest("status") == {"kept": False}


def test_another_seed_source_or_directory_boots_its_own(kept: Kept, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "testbed", tmp_path / "testbed", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "testbed/units.py").open("a") as file:
        file.write("\n# another version\n")
    for name, words, environment, why in (
        ("seeded", ("--seed", "2"), {}, "its seed is 1, not 2"),
        ("changed", (), {"PYTHONPATH": str(tmp_path)}, "the source has changed"),
        ("shown", ("--show", "/usr/share"), {}, "a directory is shown"),
    ):
        said = kept.measured(name, *words, **environment)
        assert said == f"the kept guest is not used: {why}\n"
        assert kept.copy(name) is None


def test_it_ends_when_told_to_or_idle_or_without_its_socket(tmp_path: Path, time_travel_kernel: kernel.Kernel) -> None:
    own = Kept(tmp_path)
    assert own.guest("stop") == {"stopped": False}
    for how in ("stop", "idle", "socket"):
        status = own.guest("start", "--quiet", "--idle", "1 s" if how == "idle" else "600 s")
        below = {status["process"], *descendants(status["process"])}
        if how == "stop":
            assert own.guest("stop") == {"stopped": True}
        elif how == "socket":
            (tmp_path / "runtime/testbed-guest" / SOCKET).unlink()
        wait_until_gone(below)
        assert own.guest("status") == {"kept": False}


def test_a_guest_that_is_ended_ends_its_copies(tmp_path: Path, time_travel_kernel: kernel.Kernel) -> None:
    own = Kept(tmp_path)
    keeper = own.guest("start", "--quiet")["process"]
    below = descendants(keeper)
    with own.training("orphan") as process:
        os.kill(keeper, signal.SIGKILL)
        _, said = process.communicate(timeout=30)
    assert process.returncode == ExitCode.RUN_FAILED
    assert "it was a copy of the kept guest, which has ended" in said
    wait_until_gone(below)
    assert own.measured("alone") == ""
    assert own.copy("alone") is None


def test_a_user_has_a_guest_of_their_own(kept: Kept, tmp_path: Path, time_travel_kernel: kernel.Kernel) -> None:
    place = Path("/tmp") / f"kept-guest-{os.getpid()}"
    place.mkdir(mode=0o755)
    own = Kept(place)
    for path in (place, place / "runtime"):
        os.chown(path, UID, UID)
    before = as_user(place, time_travel_kernel.path.parents[1])
    try:
        if subprocess.run([*before, sys.executable, "-c", "import testbed"], cwd=ROOT, check=False).returncode:
            pytest.skip(f"user {UID} may not read this checkout")
        before += ["env", f"XDG_RUNTIME_DIR={place / 'runtime'}"]
        code, _, said = own.called("guest", "start", "--quiet", before=before)
        assert code == ExitCode.OK, said
        code, _, said = own.called(*own.run("user", "--quiet"), before=before)
        assert (code, said) == (ExitCode.OK, "")
        assert own.copy("user") == 1
        assert own.times("user") == kept.times("booted")
    finally:
        own.called("guest", "stop", before=before)
        shutil.rmtree(place)
