"""Which directories a user may show to the code of a job (docs/isolation.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import run_testbed

from testbed.errors import BadInput
from testbed.lab.shown import require_showable


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "home"
    found.mkdir(mode=0o755)
    monkeypatch.setenv("HOME", str(found))
    return found


def made(place: Path, mode: int = 0o755) -> Path:
    place.mkdir(parents=True)
    place.chmod(mode)
    return place


def test_a_directory_of_a_home_is_shown_with_links_resolved(home: Path, tmp_path: Path) -> None:
    data = made(home / "data")
    (tmp_path / "link").symlink_to(data)
    assert require_showable([tmp_path / "link", data], tmp_path / "out") == (str(data), str(data))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (".", "does not lie in, which stays hidden"),
        ("..", "does not lie in, which stays hidden"),
        (".cache/data", "does not lie in .cache: keys are kept in such places"),
        ("keys", "a directory without .ssh"),
        ("mine", "a directory that everybody may read"),
        ("file", "a directory"),
        ("nothing", "a directory that can be read"),
        ("results", "do not go to"),
        ("results/of", "do not go to"),
    ],
)
def test_what_has_to_stay_hidden_is_refused(home: Path, name: str, reason: str) -> None:
    made(home / ".cache/data")
    made(home / "keys/.ssh")
    made(home / "mine", 0o750)
    made(home / "results/of/today")
    (home / "file").touch()
    with pytest.raises(BadInput, match=r"--show: option: got .*expected") as caught:
        require_showable([home / name], home / "results/of/today")
    assert reason in str(caught.value)


@pytest.mark.parametrize("place", ["/", "/tmp", "/var/tmp", "/root", "/home", "/etc", "/dev/shm", "/proc/self", "/sys"])
def test_no_place_of_the_machine_is_shown(place: str, tmp_path: Path) -> None:
    if not Path(place).is_dir():
        pytest.skip("not here")
    with pytest.raises(BadInput):
        require_showable([Path(place)], tmp_path / "out")


def test_the_command_refuses_before_anything_starts(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("run", "two-dc-longhaul", "tiny-gpt-pp4", "--clock", "virtual", "--schedule", "1f1b", "--out", str(out))
    done = run_testbed(*words, "--show", "/etc", COLUMNS="500")
    assert done.returncode == 2
    assert "--show: option: got '/etc', expected a directory" in done.stderr
    assert not out.exists()
