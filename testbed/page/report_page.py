"""The page as one file: its parts, its data, its style and its script, and the rule that nothing comes from outside."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import TypeVar

from testbed.page.adaptation_section import adaptation
from testbed.page.causes_section import causes
from testbed.page.environment_section import environment
from testbed.page.iterations_section import events_list, happened, series_of
from testbed.page.links_section import links
from testbed.page.markup import Markup, joined, tag
from testbed.page.memory_section import memory
from testbed.page.network_section import network
from testbed.page.subject import Subject
from testbed.page.timelines_section import MOST_ACTIONS, timelines_of
from testbed.page.verdict_section import answer, checks, comparison, events, message_flows
from testbed.results.damaged import judging
from testbed.results.load import TRACE_TABLES

SCRIPTS = ("vendor/uPlot.iife.min.js", "blocks.js", "lanes.js", "timeline.js", "iterations.js", "page.js")
STYLES = ("vendor/uPlot.min.css", "page.css")
_LICENCE = "vendor/uPlot-LICENSE.txt"


Part = TypeVar("Part")


def write_page(subjects: Sequence[Subject], path: Path) -> None:
    """Write the page of these runs, at least one. Raises BadInput for files that cannot be read, OSError."""
    path.write_bytes(page(subjects).encode("utf-8", "replace"))  # JSON may hold half of a character


def assets_bytes() -> int:
    """What a page has of scripts and styles, whatever run it shows."""
    return sum(len(_assets(names).encode()) for names in (SCRIPTS, STYLES))


def page(subjects: Sequence[Subject]) -> str:
    """The whole document. Raises BadInput for files that cannot be read."""
    blocks: list[str] = []
    data = {
        "timelines": [_judged(subject, _timelines(len(subjects), blocks)) for subject in subjects],
        "iterations": [one for subject in subjects for one in _judged(subject, series_of)],
        "happened": sorted({number for subject in subjects for number in _judged(subject, happened)}),
    }
    script, style = _assets(SCRIPTS), _assets(STYLES)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(script, style)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("link", rel="icon", href="data:,"),
        tag("title", " | ".join(dict.fromkeys(subject.title for subject in subjects)), " - testbed report"),
        tag("style", style),
    )
    body = tag(
        "body",
        tag("a", "Skip to the answer", href="#answer", class_="skip"),
        _bar(),
        tag("main", *_sections(subjects)),
        _keys(),
        tag("script", Markup(_json(data)), type="application/json", id="data"),
        *(tag("script", Markup(text), type="text/plain", id=f"block-{index}") for index, text in enumerate(blocks)),
        tag("script", script),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _timelines(runs: int, blocks: list[str]) -> Callable[[Subject], dict[str, object]]:
    def add(text: str) -> str:
        blocks.append(text)
        return f"block-{len(blocks) - 1}"

    return lambda subject: timelines_of(subject, MOST_ACTIONS // runs, add)


def _judged(subject: Subject, part: Callable[[Subject], Part]) -> Part:
    """What files hold that one run did not write is their fault."""
    with judging(subject.directory):
        return part(subject)


# --- what is safe --------------------------------------------------------------------------------


def _assets(names: Sequence[str]) -> Markup:
    """Our files and the vendored one, with its licence, as text of one element."""
    room = resources.files("testbed.page") / "assets"
    text = "\n".join((room / name).read_text(encoding="utf-8") for name in names)
    if names == SCRIPTS:
        text = f"/* uPlot:\n{(room / _LICENCE).read_text(encoding='utf-8')}\n*/\n{text}"
    return Markup(f"\n{text}\n")


def _policy(script: str, style: str) -> str:
    """Only this script and this style, by their hashes; nothing is loaded, sent or embedded."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _json(data: object) -> str:
    """As it can stand in a script element: no text in it begins a tag or a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# --- parts ---------------------------------------------------------------------------------------

_PLACES = (
    ("answer", "Answer"),
    ("timelines", "Timelines"),
    ("iterations", "Iterations"),
    ("causes", "Where time goes"),
    ("memory", "Memory"),
    ("links", "Links"),
    ("network", "Network"),
    ("checks", "Checks"),
    ("environment", "Environment"),
)


def _bar() -> Markup:
    items = [tag("li", tag("a", title, href=f"#{name}")) for name, title in _PLACES]
    return tag(
        "header",
        tag("nav", tag("ul", *items), aria_label="Parts of this page"),
        tag(
            "div",
            tag("button", "Dark", id="theme", type="button", aria_keyshortcuts="t"),
            tag("button", "Keys ?", id="show-keys", type="button", aria_keyshortcuts="?"),
            class_="tools",
        ),
        class_="bar",
    )


_CHART = (
    "Every iteration as it was measured; dashed: predicted; shaded: warm-up, which does not count; upright: before an "
    "iteration in which something happened to a link."
)


def _sections(subjects: Sequence[Subject]) -> list[Markup]:
    def by_run(part: Callable[[Subject], Markup]) -> Markup:
        found = [(subject.name, _judged(subject, part)) for subject in subjects]
        shown = [tag("div", tag("h3", name) if name else None, made, class_="run") for name, made in found if made]
        return tag("div", *shown, class_="runs") if shown else Markup("")

    first = [_judged(subject, answer) for subject in subjects]
    inside = {
        "answer": joined([tag("div", *first, class_="answers"), comparison(subjects), by_run(events)]),
        "timelines": _timeline_frame(subjects),
        "iterations": joined(
            [
                tag("p", _CHART, class_="small"),
                tag("div", id="iterations-chart", class_="chart"),
                by_run(events_list),
                by_run(adaptation),
            ]
        ),
        "causes": by_run(causes),
        "memory": by_run(memory),
        "links": by_run(links),
        "network": by_run(network),
        "checks": by_run(lambda subject: joined([checks(subject), message_flows(subject)])),
        "environment": by_run(environment),
    }
    return [
        tag(
            "section",
            tag("h2", title, class_="unseen" if name == "answer" else None, id=f"{name}-title"),
            inside[name],
            id=name,
            aria_labelledby=f"{name}-title",
        )
        for name, title in _PLACES
    ]


def _timeline_frame(subjects: Sequence[Subject]) -> Markup:
    """What the script draws timelines into, and why there are none where files are missing."""
    tables = [f"{name}.parquet" for name in TRACE_TABLES]
    lacking = [
        tag("p", f"{subject.name} " if subject.name else None, said, class_="note")
        for subject in subjects
        if (said := subject.lacks("manifest.json", *tables, "iterations.parquet"))
        or (said := "" if subject.run.schedules else "Not shown: no schedule is finished.")
    ]
    return joined(
        [
            *lacking,
            tag(
                "div",
                tag("div", id="timeline-controls", class_="controls"),
                tag("ul", id="timeline-legend", class_="legend"),
                tag("div", id="timeline-panels"),
                tag("p", id="timeline-said", class_="said", role="status", aria_live="polite"),
                id="timeline",
                hidden=True,
            ),
            tag("noscript", tag("p", "Timelines and the chart of iterations need JavaScript.", class_="note")),
        ]
    )


_KEYS = (
    ("?", "this list"),
    ("t", "light or dark"),
    ("j k", "next and previous schedule"),
    ("r", "next run"),
    ("[ ]", "previous and next iteration"),
    ("c", "compare with another schedule, or with none"),
    ("m", "messages: those that cross datacenters, all, or of the selected action only"),
    ("+ -", "zoom in and out"),
    ("← →", "pan; with Shift further"),
    ("0", "whole iteration"),
    ("n p", "next and previous action of the rank"),
    ("↑ ↓", "action on the rank above and below"),
    ("Esc", "nothing selected"),
)


def _keys() -> Markup:
    items = [
        item
        for keys, said in _KEYS
        for item in (tag("dt", *(tag("kbd", key) for key in keys.split())), tag("dd", said))
    ]
    return tag(
        "dialog",
        tag("h2", "Keys", id="keys-title"),
        tag("dl", *items),
        tag(
            "p",
            "With the pointer: drag to zoom, Shift and drag to pan, Ctrl and wheel to zoom, double click for the "
            "whole iteration, click to select an action.",
            class_="small",
        ),
        tag("button", "Close", type="button", id="close-keys"),
        id="keys",
        aria_labelledby="keys-title",
    )
