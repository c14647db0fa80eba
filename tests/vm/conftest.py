"""Guests need root, Debian's User-Mode Linux or our own kernel; where one is missing its tests skip and say so."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest
from one_boot import Measured
from shared_boots import SharedBoots

from testbed.errors import MachineLacks
from testbed.vm import guest_machine, kernel, kernel_source


@pytest.fixture(scope="session")
def time_travel_kernel() -> kernel.Kernel:
    """The built kernel of the virtual clock."""
    _require_root()
    try:
        return kernel.require()
    except MachineLacks as lack:
        pytest.skip(str(lack))


@pytest.fixture(scope="session")
def boots(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, time_travel_kernel: kernel.Kernel
) -> SharedBoots:
    """The plans of all collected files that ask for any, in one boot for every test process."""
    items = (item for item in request.session.items if "boots" in item.fixturenames)
    modules = list(dict.fromkeys(item.getparent(pytest.Module).obj for item in items))
    own, processes = tmp_path_factory.getbasetemp(), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    place = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "boots"
    place.mkdir(exist_ok=True)
    return SharedBoots(place, modules, processes)


@pytest.fixture(scope="module")
def measured(request: pytest.FixtureRequest, boots: SharedBoots) -> Mapping[str, Measured]:
    """What came of the plans that this file asked for, by its names."""
    return boots.measured(request.module)


@pytest.fixture(scope="session")
def fallback_kernel(time_travel_kernel: kernel.Kernel) -> kernel.Kernel:
    """The kernel for machines that cannot have the preferred one."""
    try:
        fallback = kernel.require(kernel_source.INSTALLED)
    except MachineLacks as lack:
        pytest.skip(str(lack))
    if fallback == time_travel_kernel:
        pytest.skip("it is the only one here: every other test in virtual time runs on it")
    return fallback


@pytest.fixture(scope="session")
def packaged_machine() -> guest_machine.GuestMachine:
    """Debian's kernel."""
    _require_root()
    try:
        return guest_machine.packaged()
    except MachineLacks as lack:
        pytest.skip(str(lack))


def _require_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: guests live in namespaces")
