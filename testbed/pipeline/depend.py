"""The one definition of what an action needs and what it makes: messages between stages, order within a stage."""

from __future__ import annotations

from typing import Literal, NamedTuple

from testbed.pipeline.ir import Action, Kind


class Message(NamedTuple):
    """A tensor from one stage to its neighbour, named by its producer.

    F: the output of `stage`, for `stage + 1`. G: the gradient of `stage`'s input, for `stage - 1`.
    """

    kind: Literal["F", "G"]
    stage: int
    microbatch: int

    @property
    def consumer(self) -> int:
        """The stage that takes it."""
        return self.stage + (1 if self.kind == "F" else -1)


def consumed(action: Action, n_stages: int) -> Message | None:
    """The message an action waits for, None for the first stage's F, the last stage's I and B, and every W."""
    if action.microbatch is None or not action.part.is_first:
        return None
    if action.kind is Kind.F and action.stage > 0:
        return Message("F", action.stage - 1, action.microbatch)
    if action.kind in (Kind.I, Kind.B) and action.stage < n_stages - 1:
        return Message("G", action.stage + 1, action.microbatch)
    return None


def produced(action: Action, n_stages: int) -> Message | None:
    """The message an action makes when it ends, None for the last stage's F, the first stage's I and B, and every W."""
    if action.microbatch is None or not action.part.is_last:
        return None
    if action.kind is Kind.F and action.stage < n_stages - 1:
        return Message("F", action.stage, action.microbatch)
    if action.kind in (Kind.I, Kind.B) and action.stage > 0:
        return Message("G", action.stage, action.microbatch)
    return None


def local_predecessor(kind: Kind) -> frozenset[Kind]:
    """Kinds of which one must have ended on the same stage and microbatch before `kind` may start."""
    match kind:
        case Kind.I | Kind.B:
            return frozenset({Kind.F})
        case Kind.W:
            return frozenset({Kind.I})
        case _:
            return frozenset()
