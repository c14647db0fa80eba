"""On what a baseline was measured: kernel, versions, source; a difference there hints at the cause of another."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from testbed import source
from testbed.spec.document import validate

RUN_PACKAGES = ("torch", "numpy", "numba", "mininet")
"""Those whose version can change a figure."""

MODEL_PACKAGES = ("numpy", "numba")
"""Those that a prediction can depend on."""


def of_this_process() -> dict[str, Any]:
    """For figures of the model alone: they depend on no kernel."""
    packages = {name: found for name in MODEL_PACKAGES if (found := _version(name))}
    return {"versions": {"python": platform.python_version(), **packages}, **_source(source.identity())}


@dataclass(frozen=True)
class Guest:
    """What is read of a manifest's `vm`."""

    kernel: dict[str, str | None] = field(default_factory=dict)
    seed: int = 1


@dataclass(frozen=True)
class RunEnvironment:
    """What is read of a run's manifest."""

    kernel: str
    shaper: str
    python: str
    packages: dict[str, str]
    clock: Literal["real", "virtual"]
    source: str | None = None
    git: dict[str, str | bool | None] | None = None
    vm: Guest | None = None


@dataclass(frozen=True)
class Environment:
    """What baseline.json says a baseline was measured on."""

    kernel: dict[str, str | None] | None = None
    shaper: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    source: str | None = None
    commit: str | None = None


def of_run(manifest: Mapping[str, Any], where: str = "manifest.json") -> dict[str, Any]:
    """Out of a run's manifest: the guest's kernel where there was a guest, else this machine's release.

    Raises BadInput for a manifest that says no such thing.
    """
    validate(RunEnvironment, dict(manifest), where)
    vm = manifest.get("vm")
    packages = {name: manifest["packages"][name] for name in RUN_PACKAGES if name in manifest["packages"]}
    return {
        "kernel": vm["kernel"] if vm else {"release": manifest["kernel"]},
        "shaper": manifest["shaper"],
        "versions": {"python": manifest["python"], **packages},
        **_source(manifest),
    }


def of_model(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run's environment its prediction depends on."""
    versions = environment.get("versions", {})
    return {"versions": {name: versions[name] for name in ("python", *MODEL_PACKAGES) if name in versions}}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is different now of kernel, shaper and versions, a line each; the source always is."""
    lines = []
    was, is_now = before.get("kernel"), now.get("kernel")
    if was and is_now and was != is_now:
        lines.append(f"kernel: {kernel_name(was)} then, {kernel_name(is_now)} now")
    if before.get("shaper") and now.get("shaper") and before["shaper"] != now["shaper"]:
        lines.append(f"shaper: {before['shaper']} then, {now['shaper']} now")
    old, new = before.get("versions", {}), now.get("versions", {})
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            lines.append(f"{name}: {old.get(name, 'none')} then, {new.get(name, 'none')} now")
    return lines


def kernel_name(kernel: Mapping[str, str]) -> str:
    """A kernel in a few words: its key says version and recipe; two builds of one key differ in their hash."""
    name = kernel.get("key") or kernel.get("release") or "unknown"
    digest = kernel.get("sha256")
    return f"{name} ({digest[:8]})" if digest else name


def _source(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {"source": identity.get("source"), "commit": (identity.get("git") or {}).get("commit")}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
