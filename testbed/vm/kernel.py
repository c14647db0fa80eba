"""The time-travel kernel: built from Debian's source with our configuration and changes, cached by their hash."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import TextIO

from testbed.errors import BadInput, MachineLacks, RunFailed, in_words
from testbed.files import user_cache
from testbed.progress import Reporter
from testbed.scratch import scratch_directory
from testbed.units import show_size
from testbed.vm import kernel_source
from testbed.vm.build_step import run_program
from testbed.vm.kernel_changes import RecipeDoesNotFit, apply_edits, apply_patches, edits_of, patches_of
from testbed.vm.kernel_source import BACKPORTED, INSTALLED, INSTALLED_PACKAGE, NoSource, Source, numbers_of, series_of

PACKAGES = (INSTALLED_PACKAGE, "build-essential", "flex", "bison", "bc", "xz-utils")
APT_COMMAND = f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
BUILD_COMMAND = "testbed kernel build"

_TOOLS = ("gcc", "make", "ld", "flex", "bison", "bc", "xz", "tar", "patch")
_STEPS = 1700
"""About how many lines `make` prints: only the progress bar needs it."""

_BUILD_DEADLINE_S = 3600.0
_TREE_BYTES = 3 * 10**9
_LOCK_POLL_S = 0.2
_SCRATCH = "building-"

SERIES_VARIABLE = "TESTBED_KERNEL"
"""In our environment: the series of the kernel to boot, where several are built."""

_GONE_SINCE = {"CONFIG_PREEMPT_NONE=y": (7, 0)}
"""Lines of our configuration that a series and those after it do not have: preemption is voluntary there at least."""

_SECCOMP_SINCE = (7, 0)
"""From here on a guest's system calls can be caught by seccomp together with time travel: cheaper than by ptrace."""


@dataclass(frozen=True)
class Kernel:
    """A built kernel: its file, the key it was built under, the Debian version of its source, and its own hash."""

    path: Path
    key: str
    source_version: str
    sha256: str

    @property
    def series(self) -> str:
        """The first two numbers of its version."""
        return series_of(self.source_version)

    @property
    def seccomp(self) -> bool:
        """Whether its guests run under seccomp instead of ptrace."""
        return numbers_of(self.source_version) >= _SECCOMP_SINCE

    def as_json(self) -> dict[str, str]:
        """For the manifest: what it is, not where it lies."""
        return {
            "series": self.series,
            "key": self.key,
            "source_version": self.source_version,
            "sha256": self.sha256,
        }


def configuration() -> str:
    """Our configuration fragment."""
    return (files("testbed.vm") / "uml-tt.config").read_text(encoding="ascii")


def recipe_hash(version: str) -> str:
    """What is ours in a kernel of that version: configuration, edits and patches."""
    changes = [asdict(edit) for edit in edits_of(version)], patches_of(version)
    recipe = json.dumps([configuration(), *changes], sort_keys=True)
    return hashlib.sha256(recipe.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class CacheKey:
    """What a built kernel depends on besides Debian's source, of which any version of a series gives the same results.

    Where all of it is the same, a kernel that another machine has built is used; where something differs, it is not
    found, or may not start.
    """

    architecture: str
    libc: str
    """The C library that it is linked with, and its version: an older one may not start it."""
    recipes: Mapping[str, str]
    """Per series that may be built, the hash of our configuration and changes."""

    @property
    def text(self) -> str:
        """All of it in one word, for a file name or the key of a cache."""
        recipes = "-".join(f"{series}-{digest}" for series, digest in self.recipes.items())
        return f"testbed-kernel-{self.architecture}-{self.libc}-{recipes}"


def cache_key(series: str | None = None) -> CacheKey:
    """Of the kernel of a series, or of what `build` makes without one: 7.2, or 6.12 where that cannot be had."""
    wanted = (BACKPORTED, INSTALLED) if series is None else (series,)
    libc = "".join(platform.libc_ver()) or "unknown"
    return CacheKey(platform.machine(), libc, {each: recipe_hash(each) for each in wanted})


def cache_directory() -> Path:
    """Where built kernels lie. Raises MachineLacks for a user without home, who names no place for them either."""
    try:
        return user_cache("kernel")
    except RuntimeError as error:
        raise MachineLacks(
            "this user has no home directory, in which the virtual clock's kernel lies; name it, or another place: "
            "export XDG_CACHE_HOME=DIR"
        ) from error


def find(series: str | None = None) -> Kernel | None:
    """The built kernel of that series, else of the one that TESTBED_KERNEL names, else the preferred one; None: none.

    Raises BadInput when TESTBED_KERNEL names no series.
    """
    return _built(series or _asked())


def require(series: str | None = None) -> Kernel:
    """The kernel that `find` finds, as it was built. Raises MachineLacks naming the command that builds it."""
    kernel = find(series)
    if kernel is not None:
        require_intact(kernel)
    else:
        asked = series or _asked()
        which, option = (f" of Linux {asked}", f" --source {asked}") if asked else ("", "")
        raise MachineLacks(
            f"the time-travel kernel{which} is not built; build it with: {BUILD_COMMAND}{option}   (about 10 minutes)"
        )
    return kernel


def require_intact(kernel: Kernel) -> None:
    """Raises MachineLacks for a kernel whose file is not the one that was built, naming the command that mends it."""
    if (wrong := _damage(kernel)) is not None:
        option = f" --source {kernel.series}" if kernel.series in (BACKPORTED, INSTALLED) else ""
        raise MachineLacks(f"{kernel.path}: {wrong}; build it again with: {BUILD_COMMAND}{option}   (about 10 minutes)")


def _damage(kernel: Kernel) -> str | None:
    """What distinguishes a kernel's file from the one that was built; None: nothing does."""
    try:
        with kernel.path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if found == kernel.sha256:
        return None
    if not kernel.sha256:
        return "has no hash beside it that says what was built"
    return f"is not the kernel that was built there (sha256 {found[:16]}..., recorded {kernel.sha256[:16]}...)"


def build(reporter: Reporter, *, series: str | None = None, jobs: int | None = None) -> tuple[Kernel, bool]:
    """Build the kernel of a series (7.2 or 6.12) unless it is there; returns it and whether it was built now.

    One whose file is not the one that was built is removed, and built again.
    Without `series`: 7.2 or another 7.* that Debian has; 6.12 where none can be had or our recipe does not fit it, with
    the reason on screen. Raises MachineLacks when packages or disk space are missing, RunFailed when a change does
    not apply or make fails.
    """
    there = _built(series)
    if there is not None and there.series != INSTALLED and _damage(there) is None:
        return there, False  # a newer version is not looked for: the same kernel gives the same results
    with _locked(cache_directory()):
        _remove_left(cache_directory(), reporter)
        if series == INSTALLED:
            return _build_installed(reporter, jobs)
        there = _built(series)
        if there is not None and there.series != INSTALLED and _kept(there, reporter):
            return there, False  # built while we waited
        _require_means()
        try:
            with _scratch() as scratch:
                source = kernel_source.fetch(scratch, reporter, any_series=series is None)
                return _build(source, scratch, jobs, reporter), True
        except (NoSource, RecipeDoesNotFit) as error:
            if series is not None:
                raise
            reporter.say(f"{error}\nno Linux {BACKPORTED} here, so {INSTALLED_PACKAGE} is used: its guests are slower")
        return _build_installed(reporter, jobs)


def _asked() -> str | None:
    asked = os.environ.get(SERIES_VARIABLE) or None
    if asked is not None and re.fullmatch(r"\d+\.\d+", asked) is None:
        raise BadInput.of("environment", SERIES_VARIABLE, asked, f"a kernel's series, {BACKPORTED} or {INSTALLED}")
    return asked


def _built(series: str | None) -> Kernel | None:
    """Of our present recipe: 7.2 before newer series before 6.12, and of one series what was built last."""
    try:
        found = [path for path in cache_directory().glob("*/build.json") if path.is_file()]
        described = [_described(path) for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)]
    except OSError as error:
        raise MachineLacks(
            f"built kernels cannot be read ({in_words(error)}); set XDG_CACHE_HOME to a place that can"
        ) from error
    kernels = [
        build
        for build in described
        if build is not None and build.key == _directory(build.source_version).name and series in (None, build.series)
    ]
    order = sorted(kernels, key=lambda kernel: (kernel.series != BACKPORTED, *(-n for n in numbers_of(kernel.series))))
    return order[0] if order else None


def _build_installed(reporter: Reporter, jobs: int | None) -> tuple[Kernel, bool]:
    try:
        source = kernel_source.installed()
    except NoSource as error:
        raise MachineLacks(f"the kernel's source is not there: {error}; run: {APT_COMMAND}") from error
    there = _described(_directory(source.version) / "build.json")
    if there is not None and _kept(there, reporter):
        return there, False
    _require_means()
    with _scratch() as scratch:
        return _build(source, scratch, jobs, reporter), True


def _kept(kernel: Kernel, reporter: Reporter) -> bool:
    """Whether a kernel is as it was built; else it is removed."""
    if (wrong := _damage(kernel)) is None:
        return True
    reporter.say(f"{kernel.path} {wrong}: it is removed, and built again")
    shutil.rmtree(kernel.path.parent)
    return False


def _build(source: Source, scratch: Path, jobs: int | None, reporter: Reporter) -> Kernel:
    began = time.monotonic()
    tree = _unpack(source.archive, scratch / "tree", reporter)
    apply_edits(tree, edits_of(source.version))
    apply_patches(tree, patches_of(source.version))
    _make(tree, source.version, jobs or os.cpu_count() or 1, reporter)
    finished = scratch / "finished"
    finished.mkdir()
    shutil.copy2(tree / "linux", finished / "linux")
    shutil.copy2(tree / ".config", finished / "config")
    directory = _directory(source.version)
    document = {
        "key": directory.name,
        "source_version": source.version,
        "sha256": hashlib.sha256((finished / "linux").read_bytes()).hexdigest(),
        "built_in_s": round(time.monotonic() - began, 1),
    }
    (finished / "build.json").write_text(json.dumps(document, indent=2) + "\n", encoding="ascii")
    if directory.exists():  # what has a damaged description, or none, counts as not built
        shutil.rmtree(directory)
    finished.rename(directory)
    return _load(directory / "build.json")


def _directory(version: str) -> Path:
    return cache_directory() / f"{version}-{recipe_hash(version)}"


def _scratch() -> AbstractContextManager[Path]:
    """Where a kernel is built: removed when this process ends, however it does."""
    return scratch_directory(_SCRATCH, cache_directory())


def _remove_left(directory: Path, reporter: Reporter) -> None:
    """Remove what builds left that were killed together with the process that removes their scratch."""
    for left in directory.glob(f"{_SCRATCH}*"):
        size = sum(path.lstat().st_size for path in left.rglob("*"))
        with reporter.step(f"removing {left}, {show_size(size)} that a killed build left"):
            shutil.rmtree(left)


def _load(build_json: Path) -> Kernel:
    document = json.loads(build_json.read_text(encoding="ascii"))
    return Kernel(build_json.parent / "linux", document["key"], document["source_version"], document.get("sha256", ""))


def _described(build_json: Path) -> Kernel | None:
    """What the file beside a built kernel says of it; None where there is none, or a damaged one: it is not built."""
    try:
        kernel = _load(build_json)
        numbers_of(kernel.series)
    except (
        FileNotFoundError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RunFailed,
    ):  # of JSON, of its fields, of what they hold
        return None
    return kernel


def _require_means() -> None:
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise MachineLacks(f"missing for building the kernel: {', '.join(missing)}; run: {APT_COMMAND}")
    free = shutil.disk_usage(cache_directory()).free
    if free < _TREE_BYTES:
        raise MachineLacks(
            f"building the kernel takes {_TREE_BYTES / 1e9:.0f} GB in {cache_directory()}, {free / 1e9:.1f} GB are "
            "free; free some, or set XDG_CACHE_HOME to another disk"
        )


@contextmanager
def _locked(directory: Path, deadline_s: float = _BUILD_DEADLINE_S) -> Iterator[None]:
    """One build at a time; a second one waits, then finds the kernel there. Raises RunFailed when it waits too long."""
    until = time.monotonic() + deadline_s
    try:
        directory.mkdir(parents=True, exist_ok=True)
        opened = (directory / "lock").open("w")
    except OSError as error:
        raise MachineLacks(
            f"{directory} cannot be written ({error.strerror}); set XDG_CACHE_HOME to a place that can"
        ) from error
    with opened as lock:
        while not _lock(lock):
            if time.monotonic() > until:
                raise RunFailed(f"another build of the kernel did not end within {deadline_s / 60:.0f} minutes")
            time.sleep(_LOCK_POLL_S)
        yield


def _lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unpack(archive: Path, target: Path, reporter: Reporter) -> Path:
    target.mkdir()
    with reporter.step(f"unpacking {archive.name}"):
        unpack = ["tar", "--extract", "--xz", "--file", str(archive), "--directory", str(target)]
        run_program(unpack, target, deadline_s=_BUILD_DEADLINE_S)
    trees = [path for path in target.iterdir() if (path / "arch" / "um").is_dir()]
    if len(trees) != 1:
        raise RunFailed(f"{archive} holds {len(trees)} kernel source trees, expected 1")
    return trees[0]


def _make(tree: Path, version: str, jobs: int, reporter: Reporter) -> None:
    (tree / "testbed.config").write_text(configuration(), encoding="ascii")
    fixed = {
        "KBUILD_BUILD_TIMESTAMP": "2024-11-17 00:00:00 UTC",
        "KBUILD_BUILD_USER": "testbed",
        "KBUILD_BUILD_HOST": "testbed",
        "KBUILD_BUILD_VERSION": "1",
    }
    asked = {"KCONFIG_ALLCONFIG": "testbed.config"}
    with reporter.step("configuring the kernel"):
        run_program(["make", "ARCH=um", "allnoconfig"], tree, deadline_s=_BUILD_DEADLINE_S, environment=fixed | asked)
        got = (tree / ".config").read_text(encoding="ascii")
        if lost := lost_lines(got, version):
            raise RecipeDoesNotFit(f"the configuration of Linux {version} dropped: {', '.join(lost)}")
    with reporter.step(f"compiling the kernel with {jobs} jobs (about 10 CPU-minutes)", total=_STEPS) as step:
        compiling = ["make", "ARCH=um", f"-j{jobs}", "linux"]
        run_program(compiling, tree, deadline_s=_BUILD_DEADLINE_S, environment=fixed, follow=lambda _: step.advance())
    if not (tree / "linux").is_file():
        raise RunFailed("make ended well but left no kernel")


def lost_lines(got: str, version: str) -> list[str]:
    """Our lines that switch something on, are not in the configuration `got`, and should be in that version's."""
    lines = set(got.splitlines())
    asked = [line for line in configuration().splitlines() if line.startswith("CONFIG_") and not line.endswith("=n")]
    gone = {line for line, since in _GONE_SINCE.items() if numbers_of(version) >= since}
    return [line for line in asked if line not in lines and line not in gone]
