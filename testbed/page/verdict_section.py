"""The answer of a page's runs, what was measured against what was predicted, and every check of the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from testbed.grouping import grouped
from testbed.judge.comparison import BASELINE, JobComparison, ScheduleComparison, costs_of_others
from testbed.page.markup import Markup, joined, note, table, tag
from testbed.page.subject import Subject, entries_head, row_name
from testbed.units import show_change, show_time, show_times


def answer(subject: Subject) -> Markup:
    """The sentence of a run, with its title and whether it can be trusted."""
    run = subject.run
    known = {**run.manifest, **run.comparison}
    facts = [known.get("shaper"), known.get("transport"), known.get("clock") and f"{known['clock']} clock"]
    if isinstance(measured := known.get("iterations"), int):
        facts.append(f"{measured} measured iteration{'s' if measured != 1 else ''}")
    facts.append(known.get("time"))
    is_long = len(subject.answer) > _LONG
    return tag(
        "article",
        tag("p", subject.name, class_="run-name") if subject.name else None,
        tag("h1" if not subject.name else "h2", subject.title),
        tag("p", ", ".join(str(fact) for fact in facts if fact), class_="facts"),
        tag("p", _badge(subject), _sentence(subject.answer), class_="answer long" if is_long else "answer"),
        tag("p", subject.missing, class_="bad") if subject.missing else None,
        *(tag("p", str(line), class_="doubt") for line in known.get("warnings", ())),
        class_="answer-of-run",
    )


_LONG = 140
"""Characters of an answer from which it is set smaller."""


def _sentence(answer: str) -> str:
    """With a capital where its first word is not the name of a schedule."""
    if not answer:
        return "No schedule is finished."
    return answer[0].upper() + answer[1:] if answer.startswith(("fastest", "most slowed")) else answer


def _badge(subject: Subject) -> Markup:
    rows = subject.rows
    if not rows or not subject.run.complete:
        return tag("span", "incomplete", class_="badge bad")
    if any(row.partly_checked for row in rows) and all(row.trusted or row.partly_checked for row in rows):
        return tag("span", "checked in part", class_="badge doubt")
    if not all(row.trusted for row in rows):
        return tag(
            "span", "untrusted" if not any(row.trusted for row in rows) else "partly untrusted", class_="badge bad"
        )
    if not all(row.covered for row in rows):
        return tag("span", "measured", class_="badge doubt")
    return tag("span", "trusted", class_="badge good")


# --- measured against predicted ------------------------------------------------------------------


def comparison(subjects: Sequence[Subject]) -> Markup:
    """One table of all entries of all runs; the fastest trusted one of every run in bold."""
    rows = [(subject, row) for subject in subjects for row in subject.rows]
    if not rows:
        return note("Not shown: no schedule is finished.")
    several, jobs = len(subjects) > 1, [isinstance(row, JobComparison) for _, row in rows]
    ranked = not all(jobs) and not all(subject.run.comparison.get("adaptation") for subject in subjects)
    whose, costs = costs_of_others([row for _, row in rows])
    known = [(row.measured_s, *row.predicted_range_s, row.predicted_on_this_host_s) for _, row in rows]
    times = iter(show_times([seconds for of_row in known for seconds in of_row]))
    spreads = iter(show_times([row.measured_iqr_s for _, row in rows]))
    hosted = any(row.predicted_on_this_host_s is not None for _, row in rows)
    body = []
    for (subject, row), cost in zip(rows, costs, strict=True):
        measured, low, high, on_this_host = (next(times) for _ in range(4))
        name = tag("strong", row_name(row)) if row is _fastest(subject) else row_name(row)
        cells: list[object] = [
            *([subject.name] if several else []),
            name,
            measured,
            next(spreads),
            low if low == high else f"{low.partition(' ')[0]} to {high}",
            show_change(row.error, 2),
            *(["-" if row.speedup_measured is None else f"{row.speedup_measured:.2f}"] if ranked else []),
            *(["-" if cost is None else show_change(cost)] if any(jobs) else []),
            trusted(row),
            *([on_this_host] if hosted else []),
            f"{row.bubble_measured:z.1%} / {row.bubble_predicted:z.1%}",
            f"{row.peak_in_flight_measured:g} / {row.peak_in_flight_predicted:g}",
        ]
        body.append(cells)
    heads = [
        *(["run"] if several else []),
        entries_head([row for _, row in rows]),
        "measured",
        "± IQR",
        "predicted",
        "error",
        *([f"× {BASELINE}"] if ranked else []),
        *([f"others cost ({whose})"] if any(jobs) else []),
        "trusted",
        *(["expected here"] if hosted else []),
        "bubble m / p",
        "in flight m / p",
    ]
    caption = "Median iteration time, measured against predicted (m / p: measured, predicted"
    caption += "; expected here: predicted with what this machine adds)" if hosted else ")"
    return table(caption, heads, body, text=2 if several else 1)


def _fastest(subject: Subject) -> ScheduleComparison | None:
    """Where there is something to choose from, on the same links."""
    if subject.run.comparison.get("adaptation"):
        return None
    among = [row for row in subject.rows if row.trusted] or list(subject.rows)
    return min(among, key=lambda row: row.measured_s) if len(subject.rows) > 1 and not subject.jobs else None


def trusted(row: ScheduleComparison) -> Markup:
    """In a word; of a measurement of something else than the prediction, only that it was measured."""
    if row.partly_checked:
        return tag("span", "in part", class_="doubt")
    if not row.trusted:
        return tag("span", "NO", class_="bad")
    return tag("span", "yes", class_="good") if row.covered else tag("span", "measured", class_="doubt")


# --- checks --------------------------------------------------------------------------------------

_MOST_ACROSS = 8
"""Schedules beside each other in the table of checks."""


def checks(subject: Subject) -> Markup:
    """Reasons not to trust it, every question with what was found for each entry, and what was noted."""
    if not subject.rows:
        return note("Not shown: no schedule is finished, so there is no verdict.")
    return joined([*_reasons(subject), *_tables(subject), *_notes(subject)])


def _reasons(subject: Subject) -> Iterator[Markup]:
    said = grouped((reason, row_name(row)) for row in subject.rows for reason in row.reasons)
    said_of_model = grouped((line, row_name(row)) for row in subject.rows for line in row.left_out)
    for title, found, class_ in (
        ("Why it cannot be trusted", said, "bad"),
        ("Not in the model, so that only the measurement can be trusted", said_of_model, "doubt"),
    ):
        if found:
            items = [
                tag("li", tag("span", _all(names, subject), class_=class_), f": {text}")
                for text, names in found.items()
            ]
            yield tag("h4", title)
            yield tag("ul", *items, class_="reasons")


def _all(names: Sequence[str], subject: Subject) -> str:
    return "all schedules" if len(names) == len(subject.rows) > 1 else ", ".join(names)


def _tables(subject: Subject) -> Iterator[Markup]:
    rows = [row for row in subject.rows if row.checks]
    for first in range(0, len(rows), _MOST_ACROSS):
        across = rows[first : first + _MOST_ACROSS]
        asked = grouped((check["question"], (index, check)) for index, row in enumerate(across) for check in row.checks)
        body = []
        for question, answers in asked.items():
            found = dict(answers)
            one = answers[0][1]
            name = joined([question, tag("small", one.get("not_taken") or one["why"])])
            body.append([name, one["limit"], *(_found(found.get(index)) for index in range(len(across)))])
        passed = sum(check["ok"] for row in across for check in row.checks)
        taken = [not check.get("not_taken") for row in across for check in row.checks]
        absent = f", {len(taken) - sum(taken)} could not be taken" if not all(taken) else ""
        yield table(
            f"{passed} of {sum(taken)} checks passed{absent}",
            ["check", "limit", *map(row_name, across)],
            body,
            class_="checks",
        )


def _found(check: dict[str, object] | None) -> object:
    if check is None:
        return "-"
    if check.get("not_taken"):
        return tag("span", str(check["found"]), class_="doubt")
    passed = bool(check["ok"])
    mark = tag("span", "✓" if passed else "✗", class_="good" if passed else "bad", aria_hidden="true")
    return joined([mark, " ", str(check["found"]), None if passed else tag("span", " failed", class_="unseen")])


def _notes(subject: Subject) -> Iterator[Markup]:
    said = grouped((text, row_name(row)) for row in subject.rows for text in row.notes)
    if said:
        items = [tag("li", f"{_all(names, subject)}: {text}") for text, names in said.items()]
        number = f"{len(items)} note{'s' if len(items) > 1 else ''} that leave the times right"
        yield tag("details", tag("summary", number), tag("ul", *items, class_="reasons"))


# --- events and flows ----------------------------------------------------------------------------


def events(subject: Subject) -> Markup:
    """What events between iterations moved, and iterations before and after them; empty where there were none."""
    happened = subject.run.comparison.get("events", ())
    if not happened:
        return Markup("")
    rows = [
        [
            f"{event['label']}: {job['job']}",
            event["flows_moved"],
            *(show_time(job[name]) if job[name] else "-" for name in _AROUND),
        ]
        for event in happened
        for job in event["iterations"]
    ]
    heads = ["event: job", "flows moved", "before", "during", "after", "before, predicted", "after, predicted"]
    return table("Iterations around events", heads, rows)


_AROUND = ("before_s", "during_s", "after_s", "before_predicted_s", "after_predicted_s")


_EXTRA = ("extra_median_s", "extra_p90_s", "extra_worst_s")
_MOST_FLOWS = 16
"""Of a schedule: of more flows those are shown whose median is farthest off."""


def message_flows(subject: Subject) -> Markup:
    """When messages came against the prediction, flow by flow; folded, since they are many."""
    tables = [_flows(row) for row in subject.rows if row.messages]
    return tag("details", tag("summary", "Messages, flow by flow"), *tables) if tables else Markup("")


def _flows(row: ScheduleComparison) -> Markup:
    far = sorted(row.messages, key=lambda flow: abs(flow["extra_median_s"] or 0.0), reverse=True)[:_MOST_FLOWS]
    flows = [flow for flow in row.messages if flow in far]
    shown = iter(show_times([flow[name] for flow in flows for name in _EXTRA]))
    body = []
    for flow in flows:
        name = f"{flow['kind']} {flow['source_rank']} → {flow['target_rank']}"
        body.append([name, flow["messages"], flow["awaited"], *(next(shown) for _ in _EXTRA)])
    which = f"the {len(flows)} of {len(row.messages)} flows farthest off, " if len(flows) < len(row.messages) else ""
    caption = f"{row_name(row)}: {which}beyond the prediction, from the end of the slot to arrival"
    return table(caption, ["flow", "messages", "awaited", "median", "90 %", "worst"], body)
