"""Files that the user names: read with bounds, whatever they are, and written completely or not at all."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from testbed.errors import BadInput, RunFailed


def user_cache(name: str) -> Path:
    """The directory of that name in the user's cache, which may not be there. RuntimeError for a user without home."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "testbed" / name


def read_bytes(path: Path, most: int, expected: str = "a readable file") -> bytes:
    """What a regular file of at most `most` bytes holds. Raises BadInput: devices and pipes may have no end."""
    source = str(path)
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise BadInput.of(source, "file", _KINDS.get(stat.S_IFMT(found.st_mode), "no file"), "a regular file")
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # it may have become a pipe meanwhile
        note_input(found)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise BadInput.of(source, "file", error.strerror, expected) from error
    except ValueError as error:  # a null character in the name
        raise BadInput.of(source, "file", str(error), expected) from error
    if len(content) > most:
        raise BadInput.of(source, "file", f"{max(found.st_size, len(content))} bytes", f"at most {most} bytes")
    return content


_INPUTS = set[tuple[int, int, int]]()
"""Files that the command has read, each as it was."""


def forget_inputs() -> None:
    """Begin a command: what an earlier one of this process has read may be written."""
    _INPUTS.clear()


def note_input(found: os.stat_result) -> None:
    """Remember a file that is read, so that no output takes its place."""
    _INPUTS.add(_identity(found))


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _refuse_input(path: Path, option: str) -> None:
    """Raises BadInput for an output that would take the place of a file that the command has read."""
    with contextlib.suppress(OSError):
        found = path.stat()
        if _identity(found) in _INPUTS:
            raise BadInput.of(option, "file", str(path), "another file: this one was read, and would be lost")


_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def read_text(path: Path, most: int, expected: str = "a readable file") -> str:
    """As `read_bytes`, in UTF-8. Raises BadInput."""
    content = read_bytes(path, most, expected)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInput.of(str(path), f"line {line}", content[error.start : error.start + 8], "UTF-8 text") from error


def csv_rows(text: str, name: str) -> list[list[str]]:
    """The rows of a CSV text, without empty lines at its end. Raises BadInput that names the file."""
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise BadInput.of(name, "file", str(error), "a CSV file") from error
    while rows and len(rows[-1]) < 2 and not "".join(rows[-1]).strip():
        rows.pop()
    return rows


MOST_JSON_BYTES = 32_000_000


def read_json(path: Path, expected: str) -> dict[str, Any]:
    """The object in a JSON file; `expected` says what it should hold. Raises BadInput."""
    return json_object(read_text(path, MOST_JSON_BYTES, expected), str(path), expected)


def indented_json(value: Any, margin: str = "") -> str:
    """A document as json.dumps writes it with an indent of 2, in a fifth of the time: what holds no lists or objects is
    written as a whole. Raises ValueError for what is no number, as it does."""
    members = list(value.values()) if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    if not members:
        return json.dumps(value, allow_nan=False)
    within = f"{margin}  "
    if any(isinstance(member, (dict, list, tuple)) and member for member in members):
        texts = [indented_json(member, within) for member in members]
        if isinstance(value, dict):  # a key as an object of its own is written, whatever its type
            keys = [json.dumps({key: None})[1 : -len("null}")] for key in value]
            texts = [key + text for key, text in zip(keys, texts, strict=True)]
        text = f",\n{within}".join(texts)
        begin, end = "{}" if isinstance(value, dict) else "[]"
    else:
        text = json.dumps(value, allow_nan=False, separators=(f",\n{within}", ": "))
        begin, text, end = text[0], text[1:-1], text[-1]
    return f"{begin}\n{within}{text}\n{margin}{end}"


def json_object(text: str | bytes, source: str, expected: str) -> dict[str, Any]:
    """The object that `text` writes. Raises BadInput, also for what only Python calls JSON: NaN, Infinity, 1e999."""
    try:
        document: Any = json.loads(text, parse_constant=_no_number, parse_float=_finite, parse_int=_whole)
    except RecursionError as error:
        raise BadInput.of(source, "file", "too deep a nesting", expected) from error
    except ValueError as error:
        raise BadInput.of(source, "file", str(error), expected) from error
    if not isinstance(document, dict):
        raise BadInput.of(source, "file", document, f"an object: {expected}")
    return document


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:20]} is out of range")
    return value


_MOST_DIGITS = 18
"""So that every whole number fits into 64 bits."""


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS + 1:
        raise ValueError(f"{text[:20]}... is out of range")
    return int(text)


_PARTIAL = ".partial"
"""In the name of a file that is being filled."""


@contextmanager
def replacing(path: Path, *, follow: bool = True) -> Iterator[Path]:
    """A new file to fill, which takes the place of `path` when the block ends well, and else goes. Raises OSError.

    What is there and no regular file (a device, a pipe) is written to as it is. Without `follow` a symbolic link is
    replaced itself: who prepared it may have meant a file that is not theirs to write.
    """
    target = path.resolve() if follow else path.parent.resolve() / path.name
    if not follow and target.is_symlink():
        target.unlink()
    if target.exists() and not target.is_file():
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
        yield target
        return
    descriptor, name = tempfile.mkstemp(
        prefix=f".{target.name[:60]}.", suffix=f"{_PARTIAL}{target.suffix}", dir=target.parent
    )
    partial = Path(name)
    try:
        os.fchmod(descriptor, target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask())
        os.close(descriptor)
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def remove_partial(directory: Path) -> None:
    """Remove what `replacing` leaves in a directory, or below it, when its process is killed."""
    for left in directory.rglob(f".*{_PARTIAL}*"):
        left.unlink(missing_ok=True)


def _umask() -> int:
    """There is no way to read it but to set it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


@contextmanager
def output(path: Path, option: str) -> Iterator[Path]:
    """As `replacing`, for a file that an option names, and that was not read. Raises BadInput naming the option."""
    _refuse_input(path, option)
    try:
        with replacing(path) as partial:
            yield partial
    except OSError as error:
        expected = f"a file that can be written ({error.strerror or error})"
        raise BadInput.of(option, "file", str(path), expected) from error


def require_writable(path: Path, option: str, *, make: bool = False) -> None:
    """Raises BadInput now for a file that could not be written later, after long work; `make` its directory."""
    _refuse_input(path, option)
    try:
        if make:
            path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "Is a directory")
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as error:
        raise BadInput.of(option, "file", str(path), f"a file that can be written ({error.strerror})") from error


@contextmanager
def saving(path: Path) -> Iterator[Path]:
    """As `replacing`, for what a run writes on its way, never through a symbolic link. Raises RunFailed."""
    try:
        with replacing(path, follow=False) as partial:
            yield partial
    except OSError as error:
        raise RunFailed(f"{path} cannot be written: {error.strerror or error}") from error


def output_directory(path: Path, option: str) -> Path:
    """A directory that an option names, new or empty, made if need be. Raises BadInput."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise BadInput.of(option, "directory", str(path), "a new or empty directory")
    except OSError as error:
        expected = f"a directory that can be written ({error.strerror})"
        raise BadInput.of(option, "directory", str(path), expected) from error
    return path


def write_output(path: Path, text: str, option: str) -> None:
    """Write a file that an option names, complete or not at all. Raises BadInput."""
    with output(path, option) as partial:
        partial.write_text(text, encoding="utf-8")
