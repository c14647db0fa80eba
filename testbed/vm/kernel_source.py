"""Where the kernel's source comes from: Debian's backports by an apt state of our own, or an installed package."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import MachineLacks, RunFailed
from testbed.progress import Reporter
from testbed.vm.build_step import run_program

BACKPORTED = "7.2"
"""The series that our recipe is tested with, and the fastest: its guests need no ptrace."""
BACKPORTS = "trixie-backports"
INSTALLED = "6.12"
INSTALLED_PACKAGE = f"linux-source-{INSTALLED}"

_APT = Path("/etc/apt")
_OS_RELEASE = Path("/etc/os-release")
_INSTALLED_ARCHIVE = Path("/usr/src") / f"{INSTALLED_PACKAGE}.tar.xz"
_DEBIAN_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_OTHER_BACKPORTED = re.compile(r"linux-source-7\.(\d+)$")

_INDEX_DEADLINE_S = 120.0
_PACKAGE_DEADLINE_S = 1200.0
_SILENCE_DEADLINE_S = 20
_EXTRACT_DEADLINE_S = 120.0
_QUERY_DEADLINE_S = 30.0
_MIRRORS_TRIED = 3


@dataclass(frozen=True)
class Source:
    """An archive of kernel source, and the Debian version of the package that it came in."""

    archive: Path
    version: str


@dataclass(frozen=True)
class Mirror:
    """A Debian archive that this machine's own apt uses, and who signs it."""

    uri: str
    signed_by: str


class NoSource(MachineLacks):
    """A series of the kernel's source cannot be had here; the message says why."""


def series_of(version: str) -> str:
    """A Debian version's kernel series: "7.2" of "7.2.12-1~bpo13+1"."""
    return ".".join(map(str, numbers_of(version)))


def numbers_of(version: str) -> tuple[int, int]:
    """The first two numbers of a kernel's version, for comparing. Raises RunFailed."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise RunFailed(f"{version!r} is no version of a kernel")
    return int(found[1]), int(found[2])


def installed() -> Source:
    """The installed package's source. Raises NoSource."""
    query = ["dpkg-query", "--show", "--showformat=${Version}", INSTALLED_PACKAGE]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_QUERY_DEADLINE_S, check=False)
    except FileNotFoundError as error:
        raise NoSource("the kernel is built from a Debian package: a Debian or like system is needed") from error
    if done.returncode != 0 or not done.stdout or not _INSTALLED_ARCHIVE.is_file():
        raise NoSource(f"{INSTALLED_PACKAGE} is not installed")
    return Source(_INSTALLED_ARCHIVE, done.stdout.strip())


def fetch(scratch: Path, reporter: Reporter, *, any_series: bool) -> Source:
    """Debian's backported source, downloaded into `scratch`, where everything of apt's stays as well.

    The machine's own package sources and lists are read, never changed; apt checks the archive's signature and the
    package's hash as always. With `any_series` another 7.* serves when 7.2 is not there. Raises NoSource.
    """
    try:
        mirrors = debian_mirrors(_APT, _codename(_OS_RELEASE))
        if not mirrors:
            raise NoSource(f"no Debian mirror among this machine's package sources ({_APT})")
        reasons = []
        for number, mirror in enumerate(mirrors[:_MIRRORS_TRIED]):
            state = scratch / f"apt-{number}"
            try:
                return _fetch_from(mirror, state, reporter, any_series=any_series)
            except (RunFailed, NoSource) as error:
                reasons.append(str(error))
                shutil.rmtree(state)
        raise NoSource("\n".join(reasons))
    except FileNotFoundError as error:
        raise NoSource(f"no {error.filename} here: a Debian or like system is needed") from error


def debian_mirrors(apt: Path, codename: str) -> list[Mirror]:
    """What /etc/apt names as sources of the main component of `codename`, in the order of the files, each once."""
    mirrors = []
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        if path.is_file() and path.suffix in (".list", ".sources"):
            text = path.read_text(encoding="utf-8", errors="replace")
            mirrors += _one_line_entries(text, codename) if path.suffix == ".list" else _stanzas(text, codename)
    return list(dict.fromkeys(mirrors))


def apt_configuration(state: Path, machine: Path = _APT) -> str:
    """apt.conf: the machine's settings (proxies, say) without its hooks, and every directory below `state`."""
    included = "".join(
        f'#include "{machine / name}{slash}";\n'
        for name, slash in (("apt.conf.d", "/"), ("apt.conf", ""))
        if (machine / name).exists()
    )
    # nothing is read after this file; no hook of the machine runs after an update; _apt may not see our cache directory
    return f"""{included}#clear APT::Update;
#clear DPkg;
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::sourcelist "{state}/debian.sources";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "{state}";
Dir::State::lists "{state}/lists";
Dir::State::status "{state}/status";
Dir::State::extended_states "{state}/extended_states";
Dir::Cache "{state}/cache";
Dir::Cache::archives "{state}/cache/archives";
Dir::Log "{state}/log";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::http::Timeout "{_SILENCE_DEADLINE_S}";
Acquire::https::Timeout "{_SILENCE_DEADLINE_S}";
"""


def choose_package(names: Sequence[str], *, any_series: bool) -> str | None:
    """Of package names: 7.2's, else, with `any_series`, the 7.* nearest above 7.0; None: none of them serves."""
    if (tested := f"linux-source-{BACKPORTED}") in names:
        return tested
    others = {int(found[1]): name for name in names if (found := _OTHER_BACKPORTED.match(name))}
    return others[min(others)] if any_series and others else None


def _fetch_from(mirror: Mirror, state: Path, reporter: Reporter, *, any_series: bool) -> Source:
    for name in ("lists/partial", "cache/archives/partial", "log", "package"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()  # of no installed package
    (state / "debian.sources").write_text(
        f"Types: deb\nURIs: {mirror.uri}\nSuites: {BACKPORTS}\nComponents: main\nSigned-By: {mirror.signed_by}\n",
        encoding="utf-8",
    )
    (state / "apt.conf").write_text(apt_configuration(state), encoding="utf-8")
    ours = {"APT_CONFIG": str(state / "apt.conf")}
    with reporter.step(f"reading what {BACKPORTS} of Debian has"):
        # a list that cannot be fetched is an error, not a warning
        update = ["apt-get", "-q", "--error-on=any", "update"]
        run_program(update, state, deadline_s=_INDEX_DEADLINE_S, environment=ours)
    names: list[str] = []
    query = ["apt-cache", "pkgnames", "linux-source-7."]
    run_program(query, state, deadline_s=_QUERY_DEADLINE_S, environment=ours, follow=names.append)
    package = choose_package(names, any_series=any_series)
    if package is None:
        raise NoSource(f"{BACKPORTS} of {mirror.uri} has no linux-source-{BACKPORTED}")
    with reporter.step(f"downloading {package}", total=100) as step:
        done = 0

        def follow(line: str) -> None:
            nonlocal done
            if found := re.match(r"dlstatus:\d+:(\d+)", line):
                while done < min(100, int(found[1])):
                    done += 1
                    step.advance()

        download = ["apt-get", "-q", "-o", "APT::Status-Fd=1", "download", package]
        run_program(download, state / "package", deadline_s=_PACKAGE_DEADLINE_S, environment=ours, follow=follow)
    return _extracted(state, package)


def _extracted(state: Path, package: str) -> Source:
    packages = list((state / "package").glob(f"{package}_*.deb"))
    if len(packages) != 1:
        raise RunFailed(f"apt-get download {package} left {len(packages)} packages, expected 1")
    version = run_program(["dpkg-deb", "--field", str(packages[0]), "Version"], state, deadline_s=_QUERY_DEADLINE_S)
    extract = ["dpkg-deb", "--extract", str(packages[0]), str(state / "extracted")]
    run_program(extract, state, deadline_s=_EXTRACT_DEADLINE_S)
    archive = state / "extracted/usr/src" / f"{package}.tar.xz"
    if not archive.is_file() or len(version) != 1:
        raise RunFailed(f"{packages[0].name} holds no {archive.name}")
    return Source(archive, version[0])


def _codename(os_release: Path) -> str:
    """Of this machine's Debian, "bookworm" say. Raises NoSource."""
    text = os_release.read_text(encoding="utf-8") if os_release.is_file() else ""
    found = re.search(r'^VERSION_CODENAME="?([a-z]+)"?$', text, re.MULTILINE)
    if found is None:
        raise NoSource(f"{os_release} does not name a version of Debian")
    return found[1]


def _one_line_entries(text: str, codename: str) -> list[Mirror]:
    """Of sources.list(5)'s one-line style: deb [option=value ...] URI suite component ..."""
    mirrors = []
    for line in text.splitlines():
        found = re.match(r"\s*deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s+([^#]*)", line)
        if found is None or found[3] != codename or "main" not in found[4].split():
            continue
        options = dict(option.partition("=")[::2] for option in (found[1] or "").split())
        mirrors.append(Mirror(found[2], options.get("signed-by", _DEBIAN_KEYS)))
    return mirrors


def _stanzas(text: str, codename: str) -> list[Mirror]:
    """Of sources.list(5)'s deb822 style."""
    mirrors = []
    for stanza in re.split(r"\n\s*\n", text):
        lines = [line for line in stanza.splitlines() if not line.startswith("#")]
        unfolded = re.sub(r"\n[ \t]+", " ", "\n".join(lines))
        fields = {
            name.strip().lower(): value.split() for name, _, value in (x.partition(":") for x in unfolded.splitlines())
        }
        wanted = (("types", "deb"), ("suites", codename), ("components", "main"))
        if all(value in fields.get(name, ()) for name, value in wanted) and fields.get("enabled") != ["no"]:
            keys = fields.get("signed-by", [])
            # a key written into the file itself is a block of text: Debian's own keyring then
            signed_by = keys[0] if len(keys) == 1 and keys[0].startswith("/") else _DEBIAN_KEYS
            mirrors += [Mirror(uri, signed_by) for uri in fields.get("uris", ())]
    return mirrors
