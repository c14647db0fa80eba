"""The time-travel kernel: built from Debian's kernel source with our configuration and edits, cached by their hash."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import TextIO

from testbed.errors import MachineLacks, RunFailed
from testbed.lab import namespaces as ns
from testbed.progress import Reporter, Step

SOURCE_PACKAGE = "linux-source-6.12"
SOURCE = Path("/usr/src") / f"{SOURCE_PACKAGE}.tar.xz"
PACKAGES = (SOURCE_PACKAGE, "build-essential", "flex", "bison", "bc", "xz-utils")
APT_COMMAND = f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
BUILD_COMMAND = "testbed kernel build"

_TOOLS = ("gcc", "make", "ld", "flex", "bison", "bc", "xz", "tar")
_STEPS = 1700
"""About how many lines `make` prints: only the progress bar needs it."""

_BUILD_DEADLINE_S = 3600.0
_TREE_BYTES = 3 * 10**9
_SHOWN_LINES = 25
_LOCK_POLL_S = 0.2
_SCRATCH = "building-"

SEED_VARIABLE = "TESTBED_KERNEL_SEED"
"""In the kernel's environment: where its random numbers come from."""


@dataclass(frozen=True)
class Edit:
    """A change of one source file: `before` must stand there exactly once."""

    file: str
    before: str
    after: str
    why: str


EDITS = (
    Edit(
        "arch/um/Kconfig",
        "config HZ\n\tint\n\tdefault 100\n",
        "config HZ\n\tint\n\tdefault 1000\n",
        "TCP's timers count jiffies: 10 ms is too coarse for a lab",
    ),
    Edit(
        "arch/um/os-Linux/util.c",
        "\treturn getrandom(buf, len, flags);\n",
        f"""\tstatic unsigned long long state;
	const char *seed = getenv("{SEED_VARIABLE}");
	unsigned char *bytes = buf;
	size_t i;

	if (!seed)
		return getrandom(buf, len, flags);
	if (!state)
		state = 0x9e3779b97f4a7c15ULL * (strtoull(seed, NULL, 10) + 1) | 1;
	for (i = 0; i < len; i++) {{
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		bytes[i] = state >> 32;
	}}
	return len;
""",
        "the same seed gives the same ports, sequence numbers and hash keys in every boot",
    ),
    Edit(
        "arch/um/kernel/skas/syscall.c",
        "\t\tif (IS_ERR_VALUE(ret) &&\n",
        "\t\tif ((IS_ERR_VALUE(ret) || syscall == __NR_sched_yield) &&\n",
        "a loop of sched_yield (gloo has one) must let time advance, or the guest hangs",
    ),
)


@dataclass(frozen=True)
class Kernel:
    """A built kernel: its file, the key it was built under, the Debian version of its source, and its own hash."""

    path: Path
    key: str
    source_version: str
    sha256: str

    def as_json(self) -> dict[str, str]:
        """For the manifest: what it is, not where it lies."""
        return {"key": self.key, "source_version": self.source_version, "sha256": self.sha256}


def configuration() -> str:
    """Our configuration fragment."""
    return (files("testbed.vm") / "uml-tt.config").read_text(encoding="ascii")


def recipe_hash() -> str:
    """What is ours in the kernel: configuration and edits."""
    recipe = json.dumps([configuration(), [asdict(edit) for edit in EDITS]], sort_keys=True)
    return hashlib.sha256(recipe.encode()).hexdigest()[:16]


def cache_directory() -> Path:
    """Where built kernels lie."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "testbed" / "kernel"


def find() -> Kernel | None:
    """The kernel of our present recipe that was built last, whatever Debian version its source had; None: not built."""
    built = [path for path in cache_directory().glob(f"*-{recipe_hash()}/build.json") if path.is_file()]
    if not built:
        return None
    return _load(max(built, key=lambda path: path.stat().st_mtime))


def require() -> Kernel:
    """The built kernel. Raises MachineLacks naming the command that builds it."""
    kernel = find()
    if kernel is None:
        raise MachineLacks(f"the time-travel kernel is not built; build it with: {BUILD_COMMAND}   (about 10 minutes)")
    return kernel


def build(reporter: Reporter, *, jobs: int | None = None) -> tuple[Kernel, bool]:
    """Build the kernel unless it is there; returns it and whether it was built now.

    Raises MachineLacks when packages or disk space are missing, RunFailed when an edit does not apply or make fails.
    """
    version = _source_version()
    directory = cache_directory() / f"{version}-{recipe_hash()}"
    with _locked(cache_directory()):
        if (directory / "build.json").is_file():
            return _load(directory / "build.json"), False
        _require_tools()
        free = shutil.disk_usage(cache_directory()).free
        if free < _TREE_BYTES:
            raise MachineLacks(
                f"building the kernel takes {_TREE_BYTES / 1e9:.0f} GB in {cache_directory()}, {free / 1e9:.1f} GB are "
                "free; free some, or set XDG_CACHE_HOME to another disk"
            )
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=cache_directory()) as scratch:
            began = time.monotonic()
            tree = _unpack(Path(scratch), reporter)
            apply_edits(tree)
            _make(tree, jobs or os.cpu_count() or 1, reporter)
            finished = Path(scratch) / "finished"
            finished.mkdir()
            shutil.copy2(tree / "linux", finished / "linux")
            shutil.copy2(tree / ".config", finished / "config")
            document = {
                "key": directory.name,
                "source_version": version,
                "sha256": hashlib.sha256((finished / "linux").read_bytes()).hexdigest(),
                "built_in_s": round(time.monotonic() - began, 1),
            }
            (finished / "build.json").write_text(json.dumps(document, indent=2) + "\n", encoding="ascii")
            finished.rename(directory)
    return _load(directory / "build.json"), True


def apply_edits(tree: Path) -> None:
    """Make our edits in an unpacked source tree. Raises RunFailed when a text to be replaced is not there once."""
    for edit in EDITS:
        path = tree / edit.file
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise RunFailed(f"kernel source: {edit.file}: {error.strerror}; edit: {edit.why}") from error
        if (found := text.count(edit.before)) != 1:
            raise RunFailed(
                f"kernel source: {edit.file}: the text to edit stands there {found} times, expected once; this is not "
                f"the {SOURCE_PACKAGE} that our edits were made for; edit: {edit.why}"
            )
        path.write_text(text.replace(edit.before, edit.after), encoding="utf-8")


def _load(build_json: Path) -> Kernel:
    document = json.loads(build_json.read_text(encoding="ascii"))
    return Kernel(build_json.parent / "linux", document["key"], document["source_version"], document["sha256"])


def _source_version() -> str:
    query = ["dpkg-query", "--show", "--showformat=${Version}", SOURCE_PACKAGE]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError as error:
        raise MachineLacks("the kernel is built from a Debian package: a Debian or like system is needed") from error
    if done.returncode != 0 or not done.stdout or not SOURCE.is_file():
        raise MachineLacks(f"the kernel's source is not installed; run: {APT_COMMAND}")
    return done.stdout.strip()


def _require_tools() -> None:
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise MachineLacks(f"missing for building the kernel: {', '.join(missing)}; run: {APT_COMMAND}")


@contextmanager
def _locked(directory: Path, deadline_s: float = _BUILD_DEADLINE_S) -> Iterator[None]:
    """One build at a time; a second one waits, then finds the kernel there. Raises RunFailed when it waits too long."""
    directory.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + deadline_s
    with (directory / "lock").open("w") as lock:
        while not _lock(lock):
            if time.monotonic() > until:
                raise RunFailed(f"another build of the kernel did not end within {deadline_s / 60:.0f} minutes")
            time.sleep(_LOCK_POLL_S)
        for left in directory.glob(f"{_SCRATCH}*"):  # of a build that was killed
            shutil.rmtree(left)
        yield


def _lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unpack(scratch: Path, reporter: Reporter) -> Path:
    with reporter.step(f"unpacking {SOURCE.name}"):
        _run(["tar", "--extract", "--xz", "--file", str(SOURCE), "--directory", str(scratch)], scratch, None)
    trees = [path for path in scratch.iterdir() if (path / "arch" / "um").is_dir()]
    if len(trees) != 1:
        raise RunFailed(f"{SOURCE} holds {len(trees)} kernel source trees, expected 1")
    return trees[0]


def _make(tree: Path, jobs: int, reporter: Reporter) -> None:
    (tree / "testbed.config").write_text(configuration(), encoding="ascii")
    with reporter.step("configuring the kernel"):
        _run(["make", "ARCH=um", "allnoconfig"], tree, None, KCONFIG_ALLCONFIG="testbed.config")
        _check_configuration(tree)
    with reporter.step(f"compiling the kernel with {jobs} jobs (about 10 CPU-minutes)", total=_STEPS) as step:
        _run(["make", "ARCH=um", f"-j{jobs}", "linux"], tree, step)
    if not (tree / "linux").is_file():
        raise RunFailed("make ended well but left no kernel")


def _check_configuration(tree: Path) -> None:
    """Every line of ours that switches something on must have survived Kconfig's dependencies."""
    got = set((tree / ".config").read_text(encoding="ascii").splitlines())
    asked = [line for line in configuration().splitlines() if line.startswith("CONFIG_") and not line.endswith("=n")]
    if lost := [line for line in asked if line not in got]:
        raise RunFailed(f"the kernel's configuration dropped: {', '.join(lost)}")


def _run(command: list[str], directory: Path, step: Step | None, **environment: str) -> None:
    """Run a command to its end, one progress unit per line of output. Raises RunFailed with its last lines."""
    fixed = {
        "LC_ALL": "C",
        "KBUILD_BUILD_TIMESTAMP": "2024-11-17 00:00:00 UTC",
        "KBUILD_BUILD_USER": "testbed",
        "KBUILD_BUILD_HOST": "testbed",
        "KBUILD_BUILD_VERSION": "1",
    }
    last: deque[str] = deque(maxlen=_SHOWN_LINES)
    with subprocess.Popen(
        command,
        cwd=directory,
        env={**os.environ, **fixed, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=lambda: ns.die_with_parent(signal.SIGTERM),  # at which make ends its own children
    ) as process:
        late = threading.Timer(_BUILD_DEADLINE_S, lambda: os.killpg(process.pid, signal.SIGKILL))
        late.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                last.append(line.rstrip())
                if step is not None:
                    step.advance()
            code = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # make's children as well
            raise
        finally:
            late.cancel()
    if code == -signal.SIGKILL:
        raise RunFailed(f"{command[0]} was killed, at the latest after {_BUILD_DEADLINE_S / 60:.0f} minutes")
    if code != 0:
        raise RunFailed("\n".join([f"{' '.join(command)}: exit code {code}:", *last]))
