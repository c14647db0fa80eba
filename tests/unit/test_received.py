"""What a worker says is read as values, and nothing that it says is run."""

from __future__ import annotations

import os
import pickle
from multiprocessing import Pipe

import numpy as np
import pytest

from testbed.train.assignment import ReferenceOutcome
from testbed.train.protocol import Failed, Ready
from testbed.train.received import receive


class Runs:
    """Pickled, it is a call."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


def said(message: object) -> object:
    ours, theirs = Pipe()
    with ours, theirs:
        theirs.send(message)
        return receive(ours)


@pytest.mark.parametrize(
    "message",
    [Ready(3), Failed(1, "why"), ReferenceOutcome(refused="why"), [np.arange(3.0).sum(), 1.5, None, {"a": (1, 2)}]],
    ids=repr,
)
def test_what_workers_say_is_read(message: object) -> None:
    assert said(message) == message


def test_arrays_are_read() -> None:
    values = said(np.arange(6).reshape(2, 3))
    assert isinstance(values, np.ndarray)
    assert values.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("function", [os.system, eval, print, getattr, pickle.loads], ids=lambda one: one.__name__)
def test_a_call_is_refused(function: object) -> None:
    with pytest.raises(pickle.UnpicklingError, match="is no part of a message"):
        said(Runs(function, "true"))


def test_a_name_within_a_module_of_messages_is_refused() -> None:
    """`field` is a function there, and `np.load` is reached through it."""
    for name in ("field", "np.load", "Mesh"):
        content = b"\x80\x04\x8c\x18testbed.train.assignment\x8c" + bytes([len(name)]) + name.encode() + b"\x93."
        ours, theirs = Pipe()
        with ours, theirs:
            theirs.send_bytes(content)
            with pytest.raises(pickle.UnpicklingError, match="is no part of a message"):
                receive(ours)


def test_what_is_no_pickle_is_an_error_of_that_kind() -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        theirs.send_bytes(b"\x80\x04garbage")
        with pytest.raises(pickle.UnpicklingError):
            receive(ours)
