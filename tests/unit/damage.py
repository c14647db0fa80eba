"""Damage to what is good, drawn from a seeded generator: values of trees, and bytes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 257, 5000, 10**6, 10**12, 2**63, -(2**63), 0.0, -0.0, 0.5, 1.5,
    -2.5, 1e-300,
    1e300, "", " ", "x", "none", "contiguous", "1f1b", "gpipe", "zb-v", "geopipe", "nope", "a.py:b", "a.csv",
    "../x.csv",
    "../../etc/passwd", "gpt", "1 ms", "1e300 s", "-1 ms", "0 s", "10", "1 GB", "1 Gbit/s", "1e-30 bit/s",
    "1 km", "5 µs",
    "1_000 ms", "1,5 ms", "NaN", "inf s", "wuqing", "paris", "paris/0", "warsaw/1", "\x00", "\u202e", "é" * 50,
    "a" * 5000,
    "9" * 500, [], {}, [[]], [1, 2], ["x"] * 4, {"x": 1}, {"": None}, [None], {"nodes": 1}, "[1:2/3]", "--help", "-1",
)  # fmt: skip
"""Put in place of something else."""

RAW: tuple[str, ...] = (
    "yes", "No", "on", "017", "0o17", "0x1f", "12:30:45", "2024-01-01", "1_000", "1e3", ".inf", "-.INF",
    ".nan", "~", "<<",
    "!!int x", "!!timestamp x", "!!binary x", "!!python/object:os.system x", "!foo bar", "*a", "&a 1",
    "&a [*a]", "|", ">",
    '"\\UFFFFFFFF"', '"\\uD800"', '"\\x00"', "'", '"', "[", "]", "{", "}", "? x", "- x", "a: b: c", "@", "`",
    "%", "#", "--- x",
    "9" * 5000, "[" * 2000, "{a: " * 500, "0." + "1" * 400, "1e99999", "\t", "\x07", "\ufeff", "\u2028",
)  # fmt: skip
"""YAML as it stands, not quoted."""

OPTION_VALUES = (
    "", "0", "-1", "1", "3", "nan", "inf", "1e400", "9" * 400, "9" * 5000, "x", "None", "1.5", "--json", "-", "/", ".",
    "/dev/zero", "/dev/null", "/proc/nowhere/x", "1f1b", "best.csv", "a.py:x", "virtual", "real", "auto", "é",
    "\u202e", "=", "a=",
)  # fmt: skip


def nodes(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of everything in a tree but its root."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in children:
        yield (*at, key)
        yield from nodes(child, (*at, key))


def _get(tree: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        tree = tree[key]
    return tree


def damaged(tree: Any, rng: random.Random, raw: bool = False) -> Any:
    """A copy with one to three things changed."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(nodes(tree))
        if not places:
            return rng.choice(VALUES)
        place = rng.choice(places)
        parent, key = _get(tree, place[:-1]), place[-1]
        rng.choice(_CHANGES)(parent, key, rng)
        if raw and rng.random() < 0.3 and _there(parent, key):
            parent[key] = f"@@{rng.randrange(len(RAW))}@@"
    return tree


def _there(parent: Any, key: Any) -> bool:
    return key in parent if isinstance(parent, dict) else key < len(parent)


def _replace(parent: Any, key: Any, rng: random.Random) -> None:
    parent[key] = copy.deepcopy(rng.choice(VALUES))


def _remove(parent: Any, key: Any, _: random.Random) -> None:
    del parent[key]


def _rename(parent: Any, key: Any, rng: random.Random) -> None:
    if isinstance(parent, dict):
        parent[rng.choice((f"{key}x", "", "name", str(key).upper(), " ", "0"))] = parent.pop(key)


def _double(parent: Any, key: Any, rng: random.Random) -> None:
    if isinstance(parent, list):
        parent.extend(copy.deepcopy(parent[key]) for _ in range(rng.choice((1, 2, 50))))
    else:
        parent[f"{key}2"] = copy.deepcopy(parent[key])


def _wrap(parent: Any, key: Any, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 2, 40))):
        parent[key] = [parent[key]] if rng.random() < 0.5 else {"x": parent[key]}


def _scale(parent: Any, key: Any, rng: random.Random) -> None:
    value = parent[key]
    if isinstance(value, bool) or value is None:
        parent[key] = not value
    elif isinstance(value, int):
        parent[key] = rng.choice((-value, value + 1, value - 1, value * 10, value * 10**6, float(value), str(value)))
    elif isinstance(value, float):
        parent[key] = rng.choice((-value, value * 1e30, value * 1e-30, int(value), str(value), True))
    elif isinstance(value, str) and value:
        at = rng.randrange(len(value))
        parent[key] = rng.choice(
            (value[:at], value[at:], value[:at] + chr(rng.randrange(1, 0x3000)) + value[at:], value * 2, value.upper())
        )


_CHANGES: tuple[Callable[[Any, Any, random.Random], None], ...] = (
    _replace,
    _replace,
    _remove,
    _rename,
    _double,
    _wrap,
    _scale,
)


_BYTES = (b"", b"\x00", b"\xff", b"\xc3\x28", b"\xef\xbb\xbf", b"\n", b"\t", b",", b"{", b'"', b": ")


def damaged_bytes(content: bytes, rng: random.Random) -> bytes:
    """A copy with some bytes changed, cut, doubled or put in."""
    content = content or b"x"
    for _ in range(rng.choice((1, 2, 8))):
        at, length = rng.randrange(len(content) + 1), rng.choice((1, 1, 4, 100))
        noise = bytes(rng.randrange(256) for _ in range(length))
        new = rng.choice((*_BYTES, noise, content[at : at + length] * 3))
        content = content[:at] + new + content[at + rng.choice((0, length)) :]
    return content
