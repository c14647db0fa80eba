"""What the doctor says of guests: a command that would not help is not named."""

from __future__ import annotations

import pytest

from testbed.errors import MachineLacks
from testbed.lab import privileges
from testbed.lab.privileges import Privilege
from testbed.vm import guest_doctor, guest_machine, kernel


@pytest.mark.parametrize(
    ("why", "remedy"),
    [
        (f"the time-travel kernel is not built; build it with: {kernel.BUILD_COMMAND}", kernel.BUILD_COMMAND),
        ("a guest's memory cannot be at the same addresses in every boot", ""),
    ],
)
def test_a_kernel_that_is_there_need_not_be_built(monkeypatch: pytest.MonkeyPatch, why: str, remedy: str) -> None:
    def refuse(*_: object) -> None:
        raise MachineLacks(why)

    monkeypatch.setattr(privileges, "require", lambda _needed: Privilege.ROOT)
    monkeypatch.setattr(kernel, "require", refuse)
    monkeypatch.setattr(guest_machine, "packaged", refuse)
    packaged, virtual = guest_doctor.examine()
    assert (virtual.detail, virtual.remedy) == (why, remedy)
    assert (packaged.detail, packaged.remedy) == (why, "")
