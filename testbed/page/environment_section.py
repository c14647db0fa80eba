"""What a run ran on, from its manifest."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

from testbed.page.markup import Markup, joined, note, tag
from testbed.page.subject import Subject

_PLAIN = (
    "time",
    "version",
    "clock",
    "shaper",
    "transport",
    "iterations",
    "kernel",
    "machine",
    "cpus",
    "python",
    "torch_import_s",
    "workload_seed",
    "source",
    "format",
)
_FOLDED = ("workload_specs", "schedules", "vm", "packages", "nodes", "lab", "links", "pinning", "deadlines", "enforced")
_MOST_CHARACTERS = 120_000
"""Of one folded part: settings of hundreds of containers are in manifest.json."""


def environment(subject: Subject) -> Markup:
    """A list of what is known, and the longer parts folded."""
    manifest = subject.run.manifest
    if not manifest:
        return note("Not shown: the run ended before it wrote manifest.json.")
    known = [item for name, value in _facts(manifest) for item in (tag("dt", name), tag("dd", value))]
    parts = [_folded(name, manifest[name]) for name in _FOLDED if manifest.get(name)]
    return joined([tag("dl", *known, class_="facts-list"), *parts])


def _facts(manifest: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    command = manifest.get("command")
    if isinstance(command, list):
        yield "command", tag("code", shlex.join(map(str, command)))
    git = manifest.get("git")
    if isinstance(git, dict) and (commit := git.get("commit")):
        yield "commit", tag("code", f"{commit}{' (files modified)' if git.get('modified') else ''}")
    for name in _PLAIN:
        if manifest.get(name) not in (None, ""):
            yield name.replace("_", " "), manifest[name]
    host = manifest.get("lab", {}).get("host") if isinstance(manifest.get("lab"), dict) else None
    if isinstance(host, dict):
        for name, value in host.items():
            if value != {}:
                yield name.replace("_", " "), value if isinstance(value, str | int) else json.dumps(value)


def _folded(name: str, value: Any) -> Markup:
    text = json.dumps(value, indent=1, ensure_ascii=False)
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]}\n... the rest is in manifest.json"
    return tag("details", tag("summary", name.replace("_", " ")), tag("pre", text, tabindex="0"))
