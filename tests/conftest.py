"""For all tests: Hypothesis without deadline and pace, which a busy machine would miss; Ctrl-C does what it does; no
looking for garbage in what is imported and collected."""

from __future__ import annotations

import gc
import os
import signal
from typing import TYPE_CHECKING

import pytest
from boot_shares import boot_of, shares_a_boot
from hypothesis import HealthCheck, settings

from testbed.vm.kept_guest import VARIABLE

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

gc.disable()  # until tests are collected: of what is imported nothing is garbage, and to look for it took a third

settings.register_profile("testbed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("testbed")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell gives it to what it starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or nothing that tests start could be interrupted

os.environ[VARIABLE] = "no"  # a guest that somebody keeps here is no matter of tests


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(50_000)  # as every command has it
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """`--dist loadfile`, but files whose plans share a boot (vm/one_boot.py) go to one process for each boot."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class LoadBootScheduling(LoadFileScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            path = config.rootpath / file
            return f"boot {boot_of(path)}" if shares_a_boot(path) else file

    return LoadBootScheduling(config, log)
