"""YAML 1.2 text to plain values: null, booleans, numbers, text, lists and mappings, within bounds of size and depth.

PyYAML parses; what scalars mean is decided here, by the core schema of YAML 1.2 (section 10.3): `yes`, `12:30:45` and
`2024-01-01` are text. Tags and merge keys are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from testbed.errors import BadInput

MOST_NODES = 100_000
"""An alias counts as much as what it stands for, so that a few lines cannot become gigabytes."""
MOST_DEPTH = 32
_LARGEST = 2**63 - 1

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser where it is there: many times faster."""

_NULL = re.compile(r"null|Null|NULL|~|")
_TRUE, _FALSE = re.compile(r"true|True|TRUE"), re.compile(r"false|False|FALSE")
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_IN_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_ZERO_FIRST = re.compile(r"[-+]?0[0-9]+")
_SURROGATE = re.compile("[\ud800-\udfff]")


class _Node(NamedTuple):
    value: Any
    size: int
    """Nodes in it, aliases counted as what they stand for."""
    depth: int


def parse(text: str, source: str, at: str = "") -> Any:
    """The value of a YAML document; `at` names the option where it is no file. Raises BadInput."""
    reader = _Reader(text, source, at)
    try:
        return reader.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}" if mark is not None and not at else at or "file"
        raise BadInput.of(source, where, error.problem or error.context, "valid YAML") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        problem = getattr(error, "reason", None) or str(error)
        raise BadInput.of(source, at or "file", problem, "valid YAML") from error


class _Reader:
    """Builds the value of one document out of the parser's events."""

    def __init__(self, text: str, source: str, at: str) -> None:
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=_LOADER)
        self._source, self._at = source, at
        self._anchors: dict[str, _Node] = {}

    def document(self) -> Any:
        value: Any = None
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if self._anchors or value is not None:
                    raise self._refused(event, (), "a second document", "one document")
                value = self._node(next(self._events), ()).value
        return value

    def _node(self, event: Any, path: tuple[str, ...]) -> _Node:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise self._refused(event, path, f"*{event.anchor}", "an alias of an anchor above it")
            return self._anchors[event.anchor]
        if len(path) > MOST_DEPTH:
            raise self._refused(event, path[:3], f"{len(path)} levels", f"at most {MOST_DEPTH} levels of nesting")
        if getattr(event, "tag", None) is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            raise self._refused(event, path, tag, "a value without a tag")
        if isinstance(event, yaml.ScalarEvent):
            node = _Node(self._scalar(event, path), 1, 0)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(path)
        else:
            node = self._mapping(path)
        if node.size > MOST_NODES:
            raise self._refused(event, path, f"{node.size} values", f"at most {MOST_NODES} values, aliases spelt out")
        if len(path) + node.depth > MOST_DEPTH:
            raise self._refused(event, path[:3], "aliases in aliases", f"at most {MOST_DEPTH} levels of nesting")
        if getattr(event, "anchor", None) is not None:
            self._anchors[event.anchor] = node
        return node

    def _sequence(self, path: tuple[str, ...]) -> _Node:
        values: list[Any] = []
        size, depth = 1, 0
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            value, more, deep = self._node(event, (*path, str(len(values))))
            values.append(value)
            size, depth = self._within(event, path, size + more), max(depth, deep + 1)
        return _Node(values, size, depth)

    def _mapping(self, path: tuple[str, ...]) -> _Node:
        values: dict[str, Any] = {}
        size, depth = 1, 0
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            plain = isinstance(event, yaml.ScalarEvent)
            key = self._node(event, path).value if plain else "a list, a mapping or an alias"
            if not plain or not isinstance(key, str):
                raise self._refused(event, path, key, "a name (text) as key")
            if key in values:
                raise self._refused(event, (*path, key), "the same key twice", "every key once")
            event = next(self._events)
            values[key], more, deep = self._node(event, (*path, key))
            size, depth = self._within(event, path, size + more + 1), max(depth, deep + 1)
        return _Node(values, size, depth)

    def _within(self, event: yaml.Event, path: tuple[str, ...], size: int) -> int:
        if size > MOST_NODES:
            raise self._refused(event, path, f"{size} values", f"at most {MOST_NODES} values, aliases spelt out")
        return size

    def _scalar(self, event: yaml.ScalarEvent, path: tuple[str, ...]) -> Any:
        text = event.value
        if _SURROGATE.search(text):
            raise self._refused(event, path, text, "text without half characters")
        if not event.implicit[0] or event.style in ("'", '"', "|", ">"):  # in quotes
            return text
        if _NULL.fullmatch(text):
            return None
        if _TRUE.fullmatch(text) or _FALSE.fullmatch(text):
            return text[0] in "tT"
        if _INTEGER.fullmatch(text) or _IN_BASE.fullmatch(text):
            value = int(text, 0) if len(text) < 60 else _LARGEST + 1
            if abs(value) > _LARGEST:
                raise self._refused(event, path, text, "a number of at most 18 digits")
            return value
        if _ZERO_FIRST.fullmatch(text):  # 8 in YAML 1.1 and C, 10 in YAML 1.2: nobody can tell what is meant
            raise self._refused(event, path, text, "a number without 0 in front (or text in quotes)")
        if _NO_NUMBER.fullmatch(text) or (_FLOAT.fullmatch(text) and abs(float(text)) > 1e308):
            raise self._refused(event, path, text, "a finite number")
        return float(text) if _FLOAT.fullmatch(text) else text

    def _refused(self, event: Any, path: tuple[str, ...], value: object, expected: str) -> BadInput:
        line = "" if self._at else f" (line {event.start_mark.line + 1})"
        field = ".".join(path) or ("" if self._at else "document")
        where = f"{field}{line}"
        return BadInput.of(self._source, ": ".join(filter(None, (self._at, where))), value, expected)
