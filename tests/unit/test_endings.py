"""How a command ends whose surroundings fail it: one line, a code that says what it was, never that of a baseline."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from in_process import run_testbed

from testbed import failure
from testbed.errors import BadInput, ExitCode
from testbed.interrupts import dealt_with, heard_interrupts, persistent_interrupts
from testbed.search.incumbent import Incumbent

ROOT = Path(__file__).parents[2]
PLAN = ("topologies/two-dc-metro.yaml", "workloads/tiny-gpt-pp4.yaml")
DEADLINE_S = 100


def ended(redirection: str, *words: str) -> tuple[int, str]:
    """Exit code and stderr of a command in a shell with this behind it."""
    command = f'"$0" -m testbed "$@" {redirection}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full", "<&- >&-"])
@pytest.mark.parametrize("words", [("predict", *PLAN, "--schedule", "1f1b", "--json"), ("--version",)])
def test_output_that_nothing_takes_is_the_error(redirection: str, words: tuple[str, ...]) -> None:
    code, said = ended(redirection, *words)
    assert code == ExitCode.RUN_FAILED
    assert said.startswith("error: the output cannot be written: ")
    assert said.count("\n") == 1


def test_closed_error_output_changes_nothing() -> None:
    assert ended("2>&-", "predict", *PLAN, "--schedule", "1f1b") == (ExitCode.OK, "")


def test_whoever_has_read_enough_is_told_nothing() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "testbed", "predict", *PLAN, "--schedule", "1f1b"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        said = process.stderr.read()
    assert (process.returncode, said) == (ExitCode.RUN_FAILED, "")


@pytest.mark.parametrize("leave", ["sys.exit(7)", "os._exit(7)", "raise SystemExit", "exit_now(7)"])
@pytest.mark.parametrize("when", ["when imported", "when called"])
def test_a_plug_in_ends_nothing_but_itself(tmp_path: Path, leave: str, when: str) -> None:
    """Where the process would end at once it is one of its own: where this fails, it would end the tests."""
    body = ("", leave) if when == "when called" else (leave, "pass")
    text = "import os, sys\nfrom os import _exit as exit_now\n{}\ndef made(problem):\n    {}\n".format(*body)
    (tmp_path / "mine.py").write_text(text)
    words = "predict", *PLAN, "--schedule", f"{tmp_path}/mine.py:made"
    if "SystemExit" in leave or "sys.exit" in leave:
        done = run_testbed(*words)
        code, said = done.returncode, done.stderr
    else:
        code, said = ended("", *words)
    assert code == ExitCode.BAD_INPUT, said
    assert said.count("\n") == 1
    assert f"SystemExit in line {3 if when == 'when imported' else 5}" in said


def raised(text: str, name: str) -> BaseException:
    """What a user's file raises."""
    from testbed.plugins import InFile, load_from_text

    try:
        load_from_text(InFile("mine.py", name), text)()
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError


def test_a_plug_in_that_leaves_where_nobody_expects_it_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert failure.failed(raised("import sys\ndef leaves():\n    sys.exit(7)\n", "leaves")) == ExitCode.BAD_INPUT
    assert capsys.readouterr().err == (
        "error: mine.py: line 3: got 'sys.exit(7)', expected code that returns, or raises what is wrong\n"
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(2, "No such file or directory", "/x"), "error: /x: No such file or directory\n"),
        (BlockingIOError(11, "Resource temporarily unavailable"), "pids.max"),
        (OSError(24, "Too many open files"), "ulimit -n"),
        (MemoryError(), "error: no memory left\n"),
        (SystemExit(1), "error: a package ended Python with sys.exit(1)\n"),
    ],
)
def test_what_the_machine_refuses_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException, said: str
) -> None:
    monkeypatch.delenv(failure.TRACEBACK_VARIABLE, raising=False)
    assert failure.failed(error) == ExitCode.RUN_FAILED
    assert said in (shown := capsys.readouterr().err)
    assert shown.count("\n") == 1


def test_where_it_came_from_is_shown_on_demand(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(failure.TRACEBACK_VARIABLE, "1")
    assert failure.failed(BadInput("wrong")) == ExitCode.BAD_INPUT
    assert "Traceback" not in capsys.readouterr().err.splitlines()[-1]


def test_what_no_one_foresaw_shows_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    assert failure.failed(KeyError("x")) == ExitCode.RUN_FAILED
    assert capsys.readouterr().err.splitlines()[-1] == "error: not foreseen: KeyError: 'x'"


@pytest.mark.parametrize("moment", ["import", "later"])
def test_ctrl_c_while_everything_is_imported_is_one_word(moment: str) -> None:
    """Sent once our first line runs: what Python does before that is not ours."""
    wait = "import testbed.interrupts" if moment == "import" else "import testbed.cli.options"
    program = (
        "import os, signal, sys, threading\n"
        "from testbed.__main__ import main\n"
        f"{wait}\n"
        f"threading.Timer({0.02 if moment == 'import' else 0.2}, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "main()\n"
    )
    words = ["predict", *PLAN, "--schedule", "best"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (ExitCode.RUN_FAILED, "interrupted\n")


def test_what_a_library_makes_of_an_interrupt_is_an_interrupt() -> None:
    """As pydantic does, which is written in another language: it tells nothing of the exception that it had."""
    program = (
        "import os, signal, sys, time\n"
        "from testbed.__main__ import main\n"
        "import testbed.cli\n"
        "def library(**_):\n"
        "    made = None\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        time.sleep(30)\n"
        "    except KeyboardInterrupt:\n"
        "        made = ValueError('KeyboardInterrupt: ')\n"
        "    raise made\n"
        "testbed.cli.app = library\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, done.stderr) == (ExitCode.RUN_FAILED, "interrupted\n")


def swallowed() -> None:
    """What `except:` around something long does to one interrupt."""
    with contextlib.suppress(BaseException):
        time.sleep(30)


def lost_in_what_c_code_calls() -> None:
    ctypes.CFUNCTYPE(None)(lambda: time.sleep(30))()


@pytest.mark.parametrize("lose", [swallowed, lost_in_what_c_code_calls])
def test_an_interrupt_that_is_lost_comes_again(lose: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # which an interrupted command leaves quiet

    def work() -> None:
        with persistent_interrupts():
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            lose()
            time.sleep(30)

    with pytest.raises(KeyboardInterrupt):
        work()


def test_an_interrupt_that_is_dealt_with_does_not_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    incumbent: Incumbent[str] = Incumbent()
    with persistent_interrupts():
        with incumbent.until_interrupted():
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.5)
        with heard_interrupts() as heard:
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.5)
            assert heard.is_set()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            dealt_with()
    assert incumbent.interrupted


def test_whatever_tidies_up_after_an_interrupt_is_left_in_peace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    tidied = []

    def work() -> None:
        with persistent_interrupts():
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(30)
            finally:
                time.sleep(0.6)
                tidied.append(True)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert tidied


def test_a_refusal_in_the_same_process_is_as_before() -> None:
    done = run_testbed("predict", *PLAN, "--schedule", "nope")
    assert done.returncode == ExitCode.BAD_INPUT


def test_what_an_interrupt_left_half_made_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class HalfMade:
        def __del__(self) -> None:
            raise AttributeError("never made")

    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    with persistent_interrupts():
        HalfMade()
        assert len(said) == 1
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            HalfMade()
    assert len(said) == 1
