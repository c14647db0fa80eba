"""Does the image of Containerfile do what it should, with exactly the capabilities that docs/ci.md names, by podman?

    python benchmarks/container.py [--suite trixie] [--kernel DIR] [--mount PATH] [--engine COMMAND]
        [--run-options WORDS] [--base TAR] [--image NAME]

No registry is asked: the base is a root of Debian that mmdebstrap makes (--base: one that is there already), and the
image is built on it (--image: the same). Then a smallest plan: predicted as a user without rights, measured on the real
clock, and, with --kernel (a copy of $XDG_CACHE_HOME/testbed/kernel), on the virtual one; then with each capability
less, and without /dev/net/tun: exit code 3, and what lacks is named. --mount: files and directories of this machine
that pip needs while the image is built, each under its own path. Images are kept in --out, apart from the machine's.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness import options
from harness.record import Claim, Topic, each, finish

from testbed.errors import ExitCode, RunFailed
from testbed.lab.capabilities import OF_GUESTS, OF_LABS, SYS_NICE, Capability

TOPOLOGY = {
    "name": "pair",
    "datacenters": {"east": {"nodes": 1}, "west": {"nodes": 1}},
    "links": [{"between": ["east", "west"], "delay": "3 ms", "rate": "1 Gbit/s"}],
}
WORKLOAD = {
    "name": "two",
    "model": {"layers": 2, "d_model": 16, "heads": 2, "sequence": 16},
    "parallelism": {"pipeline": 2},
    "microbatches": 2,
    "microbatch_size": 1,
    "pacing": {"F": "10 ms", "I": "10 ms", "W": "10 ms"},
    "message": "10 kB",
    "iterations": 3,
    "warmup": 1,
    "schedules": ["1f1b"],
}
PLAN = ("topology.yaml", "workload.yaml")
UNFILTERED = ("--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined")
TUN = ("--device", "/dev/net/tun")
NOBODY = ("--user", "65534")
KERNELS = "/root/.cache/testbed/kernel"
SHOWN_LINES = 15


class Done(NamedTuple):
    """A command that ended."""

    code: int
    said: str
    seconds: float


class Engine:
    """podman with images of its own, below a directory."""

    def __init__(self, command: str, directory: Path, run_options: str) -> None:
        self._line = [*shlex.split(command), "--root", str(directory / "images"), "--runroot", str(directory / "run")]
        self._run_options = shlex.split(run_options)

    def call(self, *words: str) -> Done:
        """Run podman."""
        began = time.monotonic()
        done = subprocess.run([*self._line, *words], cwd=options.ROOT, capture_output=True, text=True, check=False)
        return Done(done.returncode, done.stdout + done.stderr, time.monotonic() - began)

    def need(self, *words: str) -> Done:
        """The same. Raises RunFailed when it fails."""
        done = self.call(*words)
        if done.code:
            said = "\n".join(done.said.splitlines()[-SHOWN_LINES:])
            raise RunFailed(f"{shlex.join(words)}: exit code {done.code}\n{said}")
        return done

    def run(self, image: str, work: Path, kept: Sequence[Capability], rights: Sequence[str], *words: str) -> Done:
        """`testbed WORDS` in a container that has these capabilities alone."""
        capabilities = [word for one in kept for word in ("--cap-add", one.name)]
        place = ("--volume", f"{work}:/work", "--network", "none", "--rm", "--cap-drop", "ALL")
        return self.call("run", *place, *capabilities, *rights, *self._run_options, image, *words)


def built(engine: Engine, asked: Namespace, scratch: Path) -> tuple[str, str]:
    """An image, and what is to be said of it. Raises RunFailed."""
    if asked.image:
        return asked.image, "built before"
    tar = asked.base or scratch / "base.tar"
    if asked.base is None:
        made = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates", asked.suite, str(tar)]
        subprocess.run(made, check=True)
    base = f"localhost/debian:{asked.suite}"
    engine.need("import", str(tar), base)
    mounts = [word for path in asked.mount for word in ("--volume", f"{path}:{path}:ro")]
    isolation = ("--network", "host", "--isolation", "chroot")
    done = engine.need("build", *isolation, *mounts, "--build-arg", f"BASE={base}", "--tag", "testbed", ".")
    (image,) = json.loads(engine.need("image", "inspect", "localhost/testbed").said)
    return "localhost/testbed", f"{done.seconds:.0f} s, {image['Size'] / 1e9:.1f} GB"


def judged(what: str, done: Done, allowed: Sequence[int]) -> Claim:
    """That a command ended as it may."""
    good = done.code in allowed and "Traceback" not in done.said
    last = done.said.strip().splitlines()[-1] if done.said.strip() else "nothing said"
    print(f"{what}: exit code {done.code}, {done.seconds:.1f} s: {last}", flush=True)
    if not good:
        print(done.said)
    return Claim(what, "works", f"exit code {done.code}, {done.seconds:.1f} s", good, done.seconds, "s")


def refusals(
    engine: Engine, image: str, work: Path, clock: str, needed: Sequence[Capability], rights: Sequence[str]
) -> Claim:
    """That with each capability less the run says so, and that is all."""
    wrong = 0
    for lacking in needed:
        kept = [one for one in needed if one is not lacking]
        done = engine.run(image, work, kept, rights, "run", *PLAN, "--clock", clock)
        named = f"error: root lacks CAP_{lacking.name}, which " in done.said
        good = done.code == ExitCode.MACHINE_LACKS and named and "Traceback" not in done.said
        wrong += not good
        print(f"{clock} clock without {lacking.name}: exit code {done.code}, {'named' if named else done.said}")
    return each(f"container, {clock} clock, a capability less is named", wrong, len(needed))


def tried(engine: Engine, image: str, work: Path, kernels: Path | None) -> list[Claim]:
    """What docs/ci.md says of the image."""
    said = engine.run(image, work, (), NOBODY, "predict", *PLAN)
    claims = [judged("container, predict as nobody", said, (ExitCode.OK,))]
    run, real = ("run", *PLAN, "--no-picture", "--overwrite", "--out"), (*UNFILTERED, *TUN)
    done = engine.run(image, work, (*OF_LABS, SYS_NICE), real, *run, "real")
    claims.append(judged("container, real clock, five capabilities", done, (ExitCode.OK, ExitCode.UNTRUSTED)))
    claims.append(refusals(engine, image, work, "real", OF_LABS, real))
    done = engine.run(image, work, OF_LABS, UNFILTERED, *run, "none", "--shaper", "relay")
    named = done.code == ExitCode.MACHINE_LACKS and "--device /dev/net/tun" in done.said
    claims.append(each("container, without /dev/net/tun: named", not named, 1))
    if kernels is not None:
        rights = (*UNFILTERED, "--volume", f"{kernels.resolve()}:{KERNELS}:ro")
        done = engine.run(image, work, OF_GUESTS, rights, *run, "virtual", "--clock", "virtual")
        claims.append(judged("container, virtual clock, two capabilities", done, (ExitCode.OK,)))
        for lacking in OF_GUESTS:
            kept = [one for one in OF_GUESTS if one is not lacking]
            done = engine.run(image, work, kept, rights, *run, f"without-{lacking.name}", "--clock", "virtual")
            claims.append(judged(f"container, virtual clock without {lacking.name}", done, (ExitCode.OK,)))
    return claims


def main() -> int:
    """1 where something does not work."""
    parser = options.parser(__doc__)
    parser.add_argument("--suite", default="trixie", help="of the base, 13; bookworm is Debian 12")
    parser.add_argument("--kernel", type=Path, help="with this cache of kernels, on the virtual clock as well")
    parser.add_argument("--mount", type=Path, action="append", default=[], help="there while the image is built")
    parser.add_argument("--engine", default="podman", help="podman, and options of its own")
    parser.add_argument("--run-options", default="", help="more words behind `podman run`")
    parser.add_argument("--base", type=Path, metavar="TAR", help="this root instead of one that is made now")
    parser.add_argument("--image", help="this one in --out, instead of one that is built now")
    options.add_out(parser, "container", recorded=False)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    engine = Engine(asked.engine, asked.out, asked.run_options)
    with tempfile.TemporaryDirectory(prefix="testbed-container-") as name:
        scratch = Path(name)
        image, said = built(engine, asked, scratch)
        print(f"image: {said}", flush=True)
        work = scratch / "work"
        work.mkdir()
        for file, document in zip(PLAN, (TOPOLOGY, WORKLOAD), strict=True):
            (work / file).write_text(json.dumps(document), encoding="utf-8")
        for directory in (scratch, work):
            directory.chmod(0o777)
        claims = [Claim("container, its image without a registry", "(report)", said)]
        claims += tried(engine, image, work, asked.kernel)
    return finish(asked, Topic.FRONT_DOOR, claims, clock="real", directories=[])


if __name__ == "__main__":
    sys.exit(main())
