"""Debian's kernel source: the mirror is the machine's own, apt's state is not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from testbed.errors import RunFailed
from testbed.progress import Lines
from testbed.vm import kernel_source
from testbed.vm.build_step import run_program
from testbed.vm.kernel_source import Mirror, apt_configuration, choose_package, debian_mirrors

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
ONE_LINE_STYLE = """\
# deb http://commented.example/debian bookworm main
deb http://plain.example/debian bookworm main contrib # ours
deb-src http://source.example/debian bookworm main
deb [arch=amd64 signed-by=/keys/own.gpg] http://signed.example/debian bookworm main
deb http://plain.example/debian bookworm-updates main
deb http://plain.example/security bookworm-security main
deb http://other.example/tool tool-bookworm main
"""
STANZAS = """\
Types: deb deb-src
# a comment
URIs: http://stanza.example/debian
 http://second.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /keys/debian.gpg

Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
Enabled: no

Types: deb
URIs: http://block.example/debian
Suites: bookworm
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBF
"""


def apt_directory(root: Path, files: dict[str, str]) -> Path:
    (root / "sources.list.d").mkdir(parents=True)
    for name, text in files.items():
        (root / name).write_text(text)
    return root


def test_mirrors_come_from_the_machines_own_sources(tmp_path: Path) -> None:
    files = {
        "sources.list": ONE_LINE_STYLE,
        "sources.list.d/debian.sources": STANZAS,
        "sources.list.d/notes.txt": "deb http://text.example/debian bookworm main\n",
    }
    assert debian_mirrors(apt_directory(tmp_path / "apt", files), "bookworm") == [
        Mirror("http://plain.example/debian", KEYS),
        Mirror("http://signed.example/debian", "/keys/own.gpg"),
        Mirror("http://stanza.example/debian", "/keys/debian.gpg"),
        Mirror("http://second.example/debian", "/keys/debian.gpg"),
        Mirror("http://block.example/debian", KEYS),
    ]


def test_no_mirror_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_source, "_APT", apt_directory(tmp_path / "apt", {}))
    monkeypatch.setattr(kernel_source, "_OS_RELEASE", tmp_path / "os-release")
    with pytest.raises(kernel_source.NoSource, match="does not name a version of Debian"):
        kernel_source.fetch(tmp_path, Lines(quiet=True), any_series=True)
    (tmp_path / "os-release").write_text("ID=debian\nVERSION_CODENAME=bookworm\n")
    with pytest.raises(kernel_source.NoSource, match="no Debian mirror"):
        kernel_source.fetch(tmp_path, Lines(quiet=True), any_series=True)


def test_a_mirror_without_backports_is_a_reason_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By apt itself, on an archive that is an empty directory here."""
    (tmp_path / "archive").mkdir()
    (tmp_path / "os-release").write_text("VERSION_CODENAME=bookworm\n")
    apt = apt_directory(tmp_path / "apt", {"sources.list": f"deb file:{tmp_path}/archive bookworm main\n"})
    monkeypatch.setattr(kernel_source, "_APT", apt)
    monkeypatch.setattr(kernel_source, "_OS_RELEASE", tmp_path / "os-release")
    (tmp_path / "scratch").mkdir()
    with pytest.raises(kernel_source.NoSource, match="trixie-backports"):
        kernel_source.fetch(tmp_path / "scratch", Lines(quiet=True), any_series=True)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_every_directory_of_apt_is_ours_and_no_hook_runs(tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    (machine / "apt.conf.d").mkdir(parents=True)
    (machine / "apt.conf.d/50hook").write_text(
        'APT::Update::Post-Invoke { "touch /hooked"; };\nDPkg::Post-Invoke { "touch /hooked"; };\n'
        'Acquire::http::Proxy "http://proxy.example:3128";\nDir::State::lists "/elsewhere";\n'
    )
    state = tmp_path / "state"
    state.mkdir()
    (state / "apt.conf").write_text(apt_configuration(state, machine))
    dumped = subprocess.run(
        ["apt-config", "dump"],
        env={**os.environ, "APT_CONFIG": str(state / "apt.conf")},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout
    settings = dict(line.rstrip(";").split(" ", 1) for line in dumped.splitlines() if " " in line)
    for name in ("State", "State::lists", "State::status", "Cache", "Cache::archives", "Etc::sourcelist", "Log"):
        assert settings[f"Dir::{name}"].startswith(f'"{state}'), name
    for name in ("main", "parts", "sourceparts", "preferences", "preferencesparts"):
        assert settings[f"Dir::Etc::{name}"] == '"/dev/null"', name
    assert settings["Acquire::http::Proxy"] == '"http://proxy.example:3128"'
    assert "hooked" not in dumped


def test_the_tested_series_is_chosen_before_others() -> None:
    names = ["linux-source-7.10", "linux-source-7.3", "linux-source-7.2", "linux-source-7.1-rt", "linux-source-6.12"]
    assert choose_package(names, any_series=False) == "linux-source-7.2"
    without = [name for name in names if name != "linux-source-7.2"]
    assert choose_package(without, any_series=True) == "linux-source-7.3"
    assert choose_package(without, any_series=False) is None
    assert choose_package(["linux-source-6.12"], any_series=True) is None


def test_a_programs_wait_has_an_end_and_its_failure_last_words(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="sleep was killed"):
        run_program(["sleep", "100"], tmp_path, deadline_s=0.2)
    with pytest.raises(RunFailed, match=r"exit code 2:\n.*nothing-here"):
        run_program(["ls", "nothing-here"], tmp_path, deadline_s=30)
    lines: list[str] = []
    assert run_program(["printf", r"a\nb\n"], tmp_path, deadline_s=30, follow=lines.append) == lines == ["a", "b"]
