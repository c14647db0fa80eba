"""Every way to damage one file of a results directory, and what `testbed report --recheck` must make of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from damage import nodes
from in_process import run_testbed

_VALUES: tuple[Any, ...] = (None, "x", -1, 1.5, True, [], {}, [1], {"x": 1})
_GONE = object()


class Damage(NamedTuple):
    """What is done to a copy of a results directory."""

    name: str
    apply: Callable[[Path], None]


def damages(good: Path) -> Iterator[Damage]:
    """All of them: files missing, empty, cut, filled with noise; fields and columns gone, renamed, of other types."""
    for path in sorted(good.glob("*.json")) + sorted(good.glob("*.parquet")):
        content = path.read_bytes()
        yield Damage(f"{path.name} missing", partial(_remove, path.name))
        changed = {"empty": b"", "cut": content[: len(content) // 2], "noise": b"\xff\x00{" * 50, "null": b"null"}
        for what, new in changed.items():
            yield _rewritten(f"{path.name} {what}", path.name, new)
        yield from _of_json(path) if path.suffix == ".json" else _of_table(path)


def _remove(file: str, at: Path) -> None:
    (at / file).unlink()


def _rewritten(name: str, file: str, content: bytes) -> Damage:
    def write(at: Path) -> None:
        (at / file).write_bytes(content)

    return Damage(name, write)


def _of_json(path: Path) -> Iterator[Damage]:
    text = path.read_text()
    seen = set()
    for place in nodes(json.loads(text)):
        pattern = tuple(0 if isinstance(key, int) else key for key in place)
        if pattern in seen:
            continue
        seen.add(pattern)
        for value in (*_VALUES, _GONE):
            shown = "gone" if value is _GONE else repr(value)
            name = f"{path.name} {'.'.join(map(str, place))} {shown}"
            yield Damage(name, partial(_change, path.name, text, place, value))


def _change(file: str, text: str, place: Sequence[Any], value: Any, at: Path) -> None:
    """Write a document with another value at a place, or without it."""
    tree = json.loads(text)
    parent = tree
    for key in place[:-1]:
        parent = parent[key]
    if value is _GONE:
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    (at / file).write_text(json.dumps(tree))


def _of_table(path: Path) -> Iterator[Damage]:
    def saved(name: str, changed: Callable[[], pd.DataFrame]) -> Damage:
        return Damage(f"{path.name} {name}", lambda at: changed().to_parquet(at / path.name))

    whole = pd.read_parquet(path)
    yield saved("without rows", lambda: whole.iloc[:0])
    yield saved("half its rows", lambda: whole.iloc[: len(whole) // 2])
    yield saved("rows twice", lambda: pd.concat([whole, whole]))
    for name in whole.columns:
        yield saved(f"without {name}", partial(_without, whole, name))
        yield saved(f"{name} renamed", partial(_renamed, whole, name))
        for value in ("x", None, -1, 1e300):
            yield saved(f"{name} all {value!r}", partial(whole.assign, **{name: value}))


def _without(table: pd.DataFrame, column: str) -> pd.DataFrame:
    return table.drop(columns=column)


def _renamed(table: pd.DataFrame, column: str) -> pd.DataFrame:
    return table.rename(columns={column: f"{column}x"})


def fault(good: Path, damage: Damage, place: Path) -> str:
    """What is wrong with how a damaged directory is judged; "" if nothing."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(good, place)
    damage.apply(place)
    try:
        done = run_testbed("report", place, "--recheck", "--json")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        return f"{damage.name}: {type(error).__name__}: {error}"
    if "Traceback" in done.stderr:
        return f"{damage.name}: {done.stderr.strip().splitlines()[-1]}"
    if done.returncode not in (0, 2, 5):
        return f"{damage.name}: exit code {done.returncode}: {done.stderr}"
    first, *faults = done.stderr.splitlines() or [""]
    listed = not faults or (first.endswith(" faults") and all(line.startswith("  ") for line in faults))
    if done.returncode == 2 and not (listed and str(place) in first):
        return f"{damage.name}: no line that says where, nor one for each fault of a file: {done.stderr}"
    return ""
