"""A plan whose messages no memory of this machine could hold is refused before a guest boots."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.cli.progress import Terminal
from testbed.errors import MachineLacks
from testbed.planning.resolve import load_plan
from testbed.planning.schedules import choose, make, with_selected
from testbed.vm import command, guest_machine


def test_messages_that_need_more_memory_than_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "run_assignments", lambda *_args, **_options: pytest.fail("a guest was booted"))
    files = Path("two-dc-longhaul"), Path("tiny-gpt-pp4")
    plan = load_plan(*files, settings=["message=1 GB", "microbatches=256", "pacing={F: 1 s, I: 1 s, W: 1 s}"])
    plan = with_selected(plan, [make(plan, choose(plan, ["1f1b"]))])
    machine = guest_machine.GuestMachine(tmp_path, virtual=True, seed=1, modules=(), build={})
    with pytest.raises(MachineLacks, match=r"ranks hold messages, for which a guest needs \d+\.\d GiB"):
        command.train(
            machine, [command.GuestTraining(plan, tmp_path / "out")], limit_s=60.0, reporter=Terminal(quiet=True)
        )
    assert not (tmp_path / "out").exists()
