"""What ranks held: bytes by what they are for, measured and predicted, and microbatches in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from testbed.judge.comparison import ScheduleComparison, job_of, jobs_of
from testbed.page.bars import legend
from testbed.page.markup import Markup, joined, note, pictures, table, tag
from testbed.page.shapes import line, picture, rectangle, words
from testbed.page.subject import Subject, entries_head, row_name
from testbed.units import show_size

PARTS = ("activations", "parameters", "gradients", "optimizer", "buffers")
_HEIGHT, _TOP, _MOST_WIDTH, _COLUMN = 120.0, 6.0, 520.0, 34.0


def memory(subject: Subject) -> Markup:
    """A picture per entry with a column for every rank, and the fullest ranks in a table."""
    known = [row for row in subject.rows if row.memory and row.memory["measured"]]
    if not known:
        if not subject.rows:
            return note("Not shown: no schedule is finished.")
        return note("Bytes were not counted in this run; microbatches in flight are in the first table.")
    first_rank = {job.name: job.first_rank for job in jobs_of(subject.run.comparison)}
    most = max(_total(held) for row in known for which in ("measured", "predicted") for held in _of(row, which))
    body = [_fullest(row, first_rank.get(job_of(row), 0)) for row in known]
    heads = [entries_head(known), "fullest rank", *(f"{part} m / p" for part in PARTS), "limit of activations"]
    return joined(
        [
            legend(PARTS, "predicted"),
            pictures([_picture(row, first_rank.get(job_of(row), 0), most) for row in known]),
            table("Bytes on the fullest rank (m / p: measured, predicted)", heads, body),
        ]
    )


def _of(row: ScheduleComparison, which: str) -> Sequence[Mapping[str, float]]:
    return list((row.memory or {}).get(which) or ())


def _total(held: Mapping[str, float]) -> float:
    return sum(held[part] for part in PARTS)


def _picture(row: ScheduleComparison, first_rank: int, most: float) -> Markup:
    held, expected = _of(row, "measured"), _of(row, "predicted")
    step = min(_COLUMN, _MOST_WIDTH / len(held))
    width, scale = step * len(held), (_HEIGHT - _TOP) / (most or 1.0)
    drawn: list[Markup] = []
    for index, rank in enumerate(held):
        left, bottom = index * step + 0.1 * step, _HEIGHT
        boxes = []
        for number, part in enumerate(PARTS):
            high = rank[part] * scale
            bottom -= high
            boxes.append(rectangle(left, bottom, 0.8 * step, high, f"part-{number}"))
        said = ", ".join(f"{part} {show_size(rank[part])}" for part in PARTS)
        drawn.append(tag("g", tag("title", f"rank {first_rank + index}: {said}"), *boxes))
        if expected:
            y = _HEIGHT - _total(expected[index]) * scale
            drawn.append(line((left - 0.05 * step, y), (left + 0.85 * step, y), "mark"))
        if step > 12 or index % 8 == 0:
            drawn.append(words(first_rank + index, left + 0.4 * step, _HEIGHT + 12, "rank"))
    most_held, wide = show_size(max(map(_total, held))), max(width, 40.0)
    title = f"{row_name(row)}: bytes held by each rank, up to {most_held}"
    columns = picture(title, drawn, (0, 0, wide, _HEIGHT + 16), "columns", width=f"{wide:g}")
    said = joined([tag("strong", row_name(row)), f" up to {most_held}"])
    return tag("figure", tag("figcaption", said), columns)


def _fullest(row: ScheduleComparison, first_rank: int) -> list[Any]:
    held, expected = _of(row, "measured"), _of(row, "predicted")
    rank = max(range(len(held)), key=lambda index: _total(held[index]))
    cells = [
        f"{show_size(held[rank][part])} / {show_size(expected[rank][part]) if expected else '-'}" for part in PARTS
    ]
    limits = (row.memory or {}).get("activations_limit")
    return [row_name(row), first_rank + rank, *cells, "-" if limits is None else show_size(limits[rank])]
