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
from processes import descendants, guest_directories, wait_until, wait_until_gone, wait_until_removed
from three_ranks import COMPARED, TOPOLOGY, WORKLOAD

from testbed.errors import ExitCode
from testbed.vm import kernel
from testbed.vm.kept_guest import SOCKET, VARIABLE

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]  # a boot takes minutes on a machine that has much to do

ROOT = Path(__file__).parents[2]
LIMIT_S = 300
HASTY = (
    "from testbed.vm import kept_guest; kept_guest.ANSWER_S = {:g}; from testbed.__main__ import main; main()".format
)
"""The testbed command, that waits no longer than this for a kept guest: a copy that trains takes a processor."""
HASTE_S = 5.0
LONG = ("--iterations", "50000", "--schedule", "zb-h1")
FOUR_NODES = TOPOLOGY.replace("nodes: 1", "nodes: 2")
REPLICAS = WORKLOAD.replace("pipeline: 3", "pipeline: 2, data: 2").replace("[zb-h1]", "[1f1b, zb-h1]")
"""Two schedules of ranks with threads of their own: what ends between them must not hang on where objects lie."""
MINE = """
name: mine
model: {kind: my_model.py:Mlp, layers: 3, width: 16, sequence: 8}
parallelism: {pipeline: 3}
microbatches: 4
microbatch_size: 1
pacing: {F: 7 ms, I: 9 ms, W: 5 ms}
message: 37 kB
memory: 8
iterations: 2
warmup: 1
schedules: [{schedule: my_schedule.py:eager, lead: 2}]
"""


class Kept:
    """A guest of its own directory, and commands that may use it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for name, text in (("topology", FOUR_NODES), ("workload", REPLICAS)):
            (place / f"{name}.yaml").write_text(text)
        (place / "runtime").mkdir()

    def begun(
        self,
        *words: str,
        before: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        program: Sequence[str] = ("-m", "testbed"),
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*before, sys.executable, "-P", *program, *words],
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

    def run(self, name: str, *more: str, job: str = "workload.yaml") -> list[str]:
        return ["run", "topology.yaml", job, "--clock", "virtual", "--no-picture", *more, "--out", name]

    def measured(self, name: str, *more: str, job: str = "workload.yaml", **environment: str) -> str:
        """What a run said, whose results are there."""
        code, _, said = self.called(*self.run(name, "--quiet", *more, job=job), environment=environment)
        assert code == ExitCode.OK, said
        return said

    def boots_its_own(self, name: str, *more: str, **environment: str) -> list[str]:
        """What a run says before it says that it boots a guest; it is ended then: `booted` shows what comes of one."""
        process = self.begun(*self.run(name, *more), environment=environment)
        try:
            assert process.stderr is not None
            said: list[str] = []
            for line in process.stderr:
                if line.startswith("booting "):
                    return said
                said.append(line)
            raise AssertionError("".join(said))
        finally:
            process.kill()
            process.communicate(timeout=LIMIT_S)

    def copy(self, name: str) -> int | None:
        """The how many-th copy a run was measured in."""
        manifest = json.loads((self.place / name / "manifest.json").read_text())
        number: int | None = manifest.get("kept_guest", {}).get("copy")
        return number

    def rows(self, name: str) -> list[str]:
        """The schedules that a run measured, each of which must be trusted."""
        rows = json.loads((self.place / name / "comparison.json").read_text())["schedules"]
        assert all(row["trusted"] for row in rows), rows
        return [row["schedule"] for row in rows]

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
    keeper = made.guest("start", "--quiet")["process"]
    below = {keeper, *descendants(keeper)}
    try:
        made.measured("booted", **{VARIABLE: "no"})
        yield made
    finally:
        code, out, said = made.called("guest", "stop", "--json")
    assert (code, json.loads(out)) == (ExitCode.OK, {"stopped": True}), said
    wait_until_gone(below)
    assert made.guest("status") == {"kept": False}


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


def test_copies_give_the_nanoseconds_of_a_boot_one_alone_and_two_at_once(kept: Kept) -> None:
    assert kept.copy("booted") is None
    first = kept.guest("status")["copies"]
    assert kept.measured("alone") == ""
    assert kept.copy("alone") == first + 1
    both = [kept.begun(*kept.run(f"both-{n}", "--quiet")) for n in range(2)]
    for process in both:
        _, said = process.communicate(timeout=LIMIT_S)
        assert not said, said  # of a tuple pytest would show the first words
        assert process.returncode == ExitCode.OK
    assert {kept.copy("both-0"), kept.copy("both-1")} == {first + 2, first + 3}
    for name in ("alone", "both-0", "both-1"):
        assert kept.times(name) == kept.times("booted")


def test_the_doctor_knows_of_it(kept: Kept) -> None:
    code, out, said = kept.called("doctor", "--json")
    assert code in (ExitCode.OK, ExitCode.MACHINE_LACKS), said
    status = kept.guest("status")
    status.pop("kept")
    found = json.loads(out)["kept_guest"]
    assert {**found, "ends_in_s": None} == {**status, "ends_in_s": None}


def test_who_goes_takes_the_copy_along_and_leaves_the_guest_as_does_a_copy_that_dies(kept: Kept) -> None:
    before = kept.guest("status")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        name, others = f"ended-{number.name}", guest_directories()
        with kept.training(name) as process:
            own = guest_directories() - others
            assert own, "the copy's"
            process.send_signal(number)
            _, said = process.communicate(timeout=LIMIT_S)
            if number != signal.SIGKILL:
                assert process.returncode == ExitCode.RUN_FAILED
                assert said.strip().endswith("interrupted")
                assert (kept.place / name / "manifest.json").is_file()
                assert not list((kept.place / name).rglob(".*.partial*")), "a file that was being written is left"
            wait_until(lambda: len(copies_below(before["process"])) == 1, "a copy goes on", LIMIT_S)
        wait_until_removed(own, LIMIT_S)
        wait_until(lambda: kept.guest("status")["running"] == 0, "the guest has not noticed", LIMIT_S)
        after = kept.guest("status")
        assert (after["process"], after["running"]) == (before["process"], 0)
    (original,) = copies_below(before["process"])
    with kept.training("dead") as process:
        (copy,) = set(copies_below(before["process"])) - {original}
        os.kill(copy, signal.SIGKILL)
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == ExitCode.RUN_FAILED
    assert "error: the guest's kernel ended before its work did" in said
    kept.measured("after")
    assert kept.times("after") == kept.times("booted")


def test_while_a_copy_is_long_in_coming_others_are_answered_and_who_goes_gets_none(kept: Kept) -> None:
    """On a machine that has much to do it may take minutes; here its kernel is halted."""
    before = kept.guest("status")
    (original,) = copies_below(before["process"])
    os.kill(original, signal.SIGSTOP)
    try:
        patient, leaving, last = (kept.begun(*kept.run(f"waits-{n}", "--quiet")) for n in range(3))
        wait_until(lambda: kept.guest("status")["waiting"] == 3, "nobody waits", LIMIT_S)
        leaving.send_signal(signal.SIGINT)
        _, said = leaving.communicate(timeout=LIMIT_S)
        assert leaving.returncode == ExitCode.RUN_FAILED, said
        wait_until(lambda: kept.guest("status")["waiting"] == 2, "who has gone is waited for", LIMIT_S)
        _, said, _ = kept.called("guest", "status")
        assert said.strip().endswith("0 at work, 2 waited for")
    finally:
        os.kill(original, signal.SIGCONT)
    for process in (patient, last):
        _, said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == ExitCode.OK, said
    wait_until(lambda: kept.guest("status")["running"] == 0, "a copy goes on", LIMIT_S)
    after = kept.guest("status")
    assert (after["process"], after["waiting"]) == (before["process"], 0)
    done = [name for name in ("waits-0", "waits-1", "waits-2") if (kept.place / name / "comparison.json").is_file()]
    assert len(done) == 2
    assert all(kept.times(name) == kept.times("booted") for name in done)


def test_code_of_ones_own_comes_with_each_copy(kept: Kept) -> None:
    """It was written after the guest had booted, and is changed between two copies."""
    for name in ("my_model.py", "my_schedule.py"):
        shutil.copy(ROOT / "examples" / name, kept.place)
    (kept.place / "mine.yaml").write_text(MINE)
    booted, copied = {VARIABLE: "no"}, kept.guest("status")["copies"]
    kept.measured("mine", job="mine.yaml")
    kept.measured("mine-booted", job="mine.yaml", **booted)
    assert kept.times("mine") == kept.times("mine-booted")
    assert kept.rows("mine") == ["my_schedule.py:eager"]
    own = kept.place / "my_schedule.py"
    own.write_text(own.read_text().replace("def eager(", "def keen("))
    (kept.place / "mine.yaml").write_text(MINE.replace(":eager", ":keen"))
    kept.measured("mine-changed", job="mine.yaml")
    assert kept.rows("mine-changed") == ["my_schedule.py:keen"]
    assert [kept.copy(name) for name in ("mine", "mine-booted", "mine-changed")] == [copied + 1, None, copied + 2]


def test_another_seed_source_or_directory_boots_its_own(kept: Kept, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "testbed", tmp_path / "testbed", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "testbed/units.py").open("a") as file:
        file.write("\n# another version\n")
    for name, words, environment, why in (
        ("seeded", ("--seed", "2"), {}, "its seed is 1, not 2"),
        ("changed", (), {"PYTHONPATH": str(tmp_path)}, "the source has changed"),
        ("shown", ("--show", "/usr/share"), {}, "a directory is shown"),
    ):
        assert kept.boots_its_own(name, *words, **environment) == [f"the kept guest is not used: {why}\n"]


def test_it_ends_when_idle_or_without_its_socket(tmp_path: Path, time_travel_kernel: kernel.Kernel) -> None:
    """When told to: at the end of each test that keeps one for itself alone."""
    own = Kept(tmp_path)
    assert own.guest("stop") == {"stopped": False}
    for how in ("idle", "socket"):
        status = own.guest("start", "--quiet", "--idle", "1 s" if how == "idle" else "600 s")
        below = {status["process"], *descendants(status["process"])}
        if how == "socket":
            (tmp_path / "runtime/testbed-guest" / SOCKET).unlink()
        wait_until_gone(below)
        assert own.guest("status") == {"kept": False}


def test_a_guest_that_does_not_answer_is_ended_and_ends_its_copies(
    tmp_path: Path, time_travel_kernel: kernel.Kernel
) -> None:
    own = Kept(tmp_path)
    keeper = own.guest("start", "--quiet")["process"]
    below = descendants(keeper)
    (init,) = [pid for pid in below if parent(pid) == keeper]
    with own.training("orphan") as orphan:
        copied = descendants(keeper)
        for pid in below - {init}:
            os.kill(pid, signal.SIGSTOP)
        asking = own.begun(*own.run("stopped", "--quiet"), program=("-c", HASTY(HASTE_S)))
        _, said = asking.communicate(timeout=LIMIT_S)
        assert asking.returncode == ExitCode.RUN_FAILED
        assert f"the kept guest did not answer within {HASTE_S:g} s: it is ended" in said
        _, said = orphan.communicate(timeout=LIMIT_S)
    assert orphan.returncode == ExitCode.RUN_FAILED
    assert "it was a copy of the kept guest, which has ended" in said
    wait_until_gone({keeper, *below, *copied})
    assert own.guest("status") == {"kept": False}
    assert own.boots_its_own("alone") == []


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
