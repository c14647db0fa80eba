"""Names that stand for something: built in, from a package's entry point, or in a file."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from testbed.plugins import InFile, Registry, Unusable, in_file, load_from_text, prints_to_stderr, read_content


def as_text(name: str, loaded: object) -> str:
    if not isinstance(loaded, str):
        raise Unusable(name, "a text")
    return loaded


def registry(**built_in: str) -> Registry[str]:
    return Registry("testbed.test", built_in, as_text)


def install(directory: Path, package: str, group: str, *lines: str) -> None:
    """A package's metadata as pip leaves it."""
    information = directory / f"{package}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines]) + "\n")


def test_built_in_names_are_listed_without_an_import() -> None:
    known = registry(gone="no.such.module:VALUE", here="string:digits")
    assert list(known) == ["gone", "here"]
    assert known["here"] == "0123456789"
    with pytest.raises(ModuleNotFoundError):
        known["gone"]


def test_a_package_adds_names_but_does_not_replace_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "one", "testbed.test", "hex = string:hexdigits", "here = string:hexdigits")
    install(tmp_path, "two", "testbed.test", "twice = string:digits", "bad = string:nothing", "wrong = string:Template")
    install(tmp_path, "three", "testbed.test", "twice = string:octdigits")
    monkeypatch.syspath_prepend(tmp_path)
    known = registry(here="string:digits")
    assert list(known) == ["here", "bad", "hex", "twice", "wrong"]
    assert (known["here"], known["hex"]) == ("0123456789", "0123456789abcdefABCDEF")
    with pytest.raises(Unusable, match=r"one package registers \(these do: three, two\)"):
        known["twice"]
    with pytest.raises(Unusable, match=r"can be imported \(string:nothing: AttributeError"):
        known["bad"]
    with pytest.raises(Unusable, match="a text"):
        known["wrong"]
    with pytest.raises(Unusable, match=r"got 'none', expected one of here, bad, hex, twice, wrong, or FILE.py:NAME"):
        known.find("none")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a/b.py:Name", ("a/b.py", "Name")),
        ("../b c.py:_n1", ("../b c.py", "_n1")),
        ("gpipe", None),
        ("b.py", None),
        ("b.py:", None),
        ("b.py:os.system", None),
        ("b.csv:x", None),
    ],
)
def test_what_names_something_in_a_file(text: str, found: tuple[str, str] | None) -> None:
    assert in_file(text) == found


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            "import json\nfrom pathlib import Path\nclass There: ...\nother, made = 3, Path()",
            r"got 'f.py:X', expected a name in that file \(There, other, made\)",
        ),
        ("", r"a name in that file \(it has none\)"),
        ("X = 1\nX = 1 +", r"got 'f.py', expected a module that can be imported \(SyntaxError in line 2: "),
        ("import no_such_module", r"ModuleNotFoundError in line 1: No module named 'no_such_module'"),
        ("def f():\n    return 1 / 0\nX = f()", r"ZeroDivisionError in line 2: division by zero"),
    ],
)
def test_a_file_that_does_not_have_it(content: str, expected: str) -> None:
    for _ in range(2):  # the second time no half-made module is found
        with pytest.raises(Unusable, match=expected):
            load_from_text(InFile("f.py", "X"), content)


def test_the_same_content_is_one_module() -> None:
    """What is made from it in one place is known in another."""
    content = "from dataclasses import dataclass\n@dataclass\nclass X:\n    n: int"
    made = load_from_text(InFile("f.py", "X"), content)(3)
    assert isinstance(made, load_from_text(InFile("elsewhere/f.py", "X"), content))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe")
    with pytest.raises(Unusable, match="UTF-8 text"):
        read_content("bytes.py", tmp_path)
    with pytest.raises(Unusable, match="a directory"):
        read_content(".", tmp_path)


def test_listing_schedules_and_models_imports_none() -> None:
    script = (
        "import sys; from testbed.schedule.registry import FAMILIES; from testbed.spec.model import MODELS;"
        "print(list(FAMILIES), list(MODELS));"
        "print([m for m in sys.modules if m in ('torch', 'testbed.train.gpt', 'testbed.schedule.search_families')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    listed, imported = done.stdout.splitlines()
    assert "crosspipe-loop" in listed
    assert "gpt" in listed
    assert imported == "[]"


def test_threads_that_print_at_the_same_time_leave_standard_output_as_it_was() -> None:
    before, inside = sys.stdout, threading.Barrier(3)

    def prints(turn: int) -> None:
        with prints_to_stderr():
            inside.wait(10)
            time.sleep(0.01 * turn)

    threads = [threading.Thread(target=prints, args=(turn,)) for turn in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sys.stdout is before
