"""A model whose code tries to get out of where it trains, once per process, and says what became of each attempt."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

WORKLOAD = """
name: stranger
model: {kind: "stranger.py:Stranger", layers: 4, width: 32, sequence: 16}
parallelism: {pipeline: 2}
microbatches: 2
microbatch_size: 1
pacing: {F: 10 ms, I: 10 ms, W: 10 ms}
message: 10 kB
iterations: 1
warmup: 1
schedules: [1f1b]
"""

TOPOLOGY = """
name: pair
datacenters: {east: {nodes: 1}, west: {nodes: 1}}
links: [{between: [east, west], delay: 3 ms, rate: 1 Gbit/s}]
"""

_REFUSED = {
    *("OSError", "PermissionError", "FileNotFoundError", "ProcessLookupError", "ConnectionRefusedError"),
    *("BlockingIOError", "TimeoutError"),
}

_TRIED = '''


def tried(attempt):
    try:
        return str(attempt() or "done")
    except Exception as error:
        return type(error).__name__


def called(name, *values):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*values) == -1:
        raise OSError(ctypes.get_errno(), name)


def elsewhere(attempt):
    """In a process of its own, which may change what it likes of itself."""
    import os
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, tried(attempt).encode())
        os.kill(os.getpid(), 9)
    os.close(write)
    os.waitpid(pid, 0)
    return os.read(read, 1000).decode()


def in_user_namespace(attempt):
    called("unshare", 0x10000000 | 0x20000)
    return attempt()


def written(path):
    from pathlib import Path
    return lambda: Path(path).write_text("escaped") and "done"


def read(path):
    from pathlib import Path
    return lambda: Path(path).read_text() or "empty"


def reached(family, address):
    import socket
    with socket.socket(family, socket.SOCK_STREAM) as end:
        end.settimeout(2)
        end.connect(address)


def raw():
    import socket
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 768).close()


def remounted():
    called("mount", None, b"/", None, 32, None)  # MS_REMOUNT, and not read-only
    return written("/etc/testbed-escaped")()


def many_processes():
    import os, resource, signal
    resource.setrlimit(resource.RLIMIT_NPROC, (40, 40))
    born = []
    try:
        for _ in range(80):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            born.append(pid)
        return "done"
    finally:
        for pid in born:
            os.kill(pid, 9)


def large_file(where):
    import os
    with open(where + "/large", "wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, 80 * 2**20)
        finally:
            os.unlink(file.name)


def endless_file(where):
    import os
    with open(where + "/endless", "wb") as file:
        os.unlink(file.name)
        os.truncate(file.fileno(), 5 * 2**30)


def facts():
    import os, resource
    from pathlib import Path
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "user": status["Uid"].split(),
        "capabilities": [status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")],
        "no new privileges": status["NoNewPrivs"].strip(),
        "environment": sorted(os.environ),
        "processes": len([name for name in os.listdir("/proc") if name.isdigit()]),
        "most tasks": resource.getrlimit(resource.RLIMIT_NPROC)[1],
        "oom": Path("/proc/self/oom_score_adj").read_text().strip(),
        "home": sorted(os.listdir(HOME)) if os.path.isdir(HOME) else [],
        "secrets": [str(path) for path in Path("/root").rglob("SECRET*")],
        "here": sorted(os.listdir(".")),
        "group": len(os.getgroups()),
    }


def escapes():
    import ctypes, os, socket
    found = {}
    other = HOST_PID if os.getpid() == 1 else 1  # what it sees as the first is its container's, or itself
    places = ("/etc", "/usr", "/var/tmp", "/lib", "/proc/sys/net/ipv4", "/sys", "/dev", HERE, HERE + "/out", PYTHON)
    for place in places:
        found["write " + place] = tried(written(place + "/testbed-escaped"))
    found["sysctl of the machine"] = tried(written("/proc/sys/kernel/sysrq"))
    found["sysctl of the network"] = tried(written("/proc/sys/net/ipv4/ip_forward"))
    found["shadow"] = tried(read("/etc/shadow"))
    found["secret at home"] = tried(read(HOME + "/SECRET"))
    found["secret here"] = tried(read("SECRET"))
    found["secret above"] = tried(read("../" * 9 + HERE + "/SECRET"))
    found["environment of others"] = tried(read(f"/proc/{other}/environ"))
    found["memory of others"] = tried(read(f"/proc/{other}/mem"))
    found["files of others"] = tried(lambda: os.listdir(f"/proc/{other}/root/etc") and "done")
    found["kill a process of the machine"] = tried(lambda: os.kill(HOST_PID, 0))
    found["kill the container"] = tried(lambda: os.kill(other, 0))
    found["ptrace"] = tried(lambda: called("ptrace", 16, other, None, None))
    found["mount"] = elsewhere(lambda: called("mount", b"none", b"/mnt", b"tmpfs", 0, None))
    found["mount the machine"] = elsewhere(lambda: called("mount", b"none", b"/mnt", b"hostfs", 0, b"/"))
    found["remount"] = elsewhere(remounted)
    found["unmount"] = elsewhere(lambda: called("umount2", b"/proc", 2))
    found["remount in a user namespace"] = elsewhere(lambda: in_user_namespace(remounted))
    found["unmount in a user namespace"] = elsewhere(lambda: in_user_namespace(lambda: called("umount2", b"/proc", 2)))
    mounts = f"/proc/{other}/ns/mnt"
    found["namespace of the container"] = tried(lambda: called("setns", os.open(mounts, os.O_RDONLY), 0))
    found["root directory"] = elsewhere(lambda: os.chroot("/tmp"))
    found["become root"] = elsewhere(lambda: os.setuid(0))
    init_module = {"x86_64": 175, "aarch64": 105}[os.uname().machine]
    found["module"] = tried(lambda: called("syscall", init_module, None, 0, b""))
    found["restart"] = elsewhere(lambda: called("reboot", 0))
    found["device"] = tried(lambda: os.mknod("/tmp/disk", 0o60600, os.makedev(8, 0)))
    found["tun"] = tried(lambda: os.open("/dev/net/tun", os.O_RDWR) and "done")
    found["kernel log"] = tried(lambda: os.open("/dev/kmsg", os.O_WRONLY) and "done")
    found["raw socket"] = tried(raw)
    found["port of the machine"] = tried(lambda: reached(socket.AF_INET, ("127.0.0.1", PORT)))
    found["address outside"] = tried(lambda: reached(socket.AF_INET, ("192.0.2.1", 80)))
    found["abstract socket of the machine"] = tried(lambda: reached(socket.AF_UNIX, "\\0" + SOCKET))
    found["socket of the machine"] = tried(lambda: reached(socket.AF_UNIX, HERE + "/" + SOCKET))
    found["processes without end"] = elsewhere(many_processes)
    found["a large file"] = tried(lambda: large_file("/tmp"))
    found["an endless file"] = elsewhere(lambda: endless_file("/tmp"))
    os.symlink(HERE, "/tmp/link")
    found["through a link"] = tried(written("/tmp/link/testbed-escaped"))
    os.unlink("/tmp/link")
    return found


def with_shown():
    return {}


def report():
    global report
    report = lambda: None
    import json
    print("ESCAPES " + json.dumps(facts() | {"tried": escapes(), "shown": with_shown()}), flush=True)


class Stranger(Mlp):
    def batch(self, *values):
        report()
        return super().batch(*values)

    def loss(self, *values):
        report()
        return super().loss(*values)
'''

_SHOWN = """

def remounted_there():
    called("mount", None, SHOWN.encode(), None, 32 | 4096, None)  # MS_REMOUNT | MS_BIND, and not read-only
    return written(SHOWN + "/new")()


def with_shown():
    import os
    return {
        "read": tried(read(SHOWN + "/data")),
        "write": tried(written(SHOWN + "/new")),
        "append": tried(lambda: open(SHOWN + "/data", "a") and "done"),
        "remove": tried(lambda: os.unlink(SHOWN + "/data")),
        "change": tried(lambda: os.chmod(SHOWN, 0o777)),
        "remount": elsewhere(remounted_there),
        "remount in a user namespace": elsewhere(lambda: in_user_namespace(remounted_there)),
        "beside": tried(read(SHOWN + "/../SECRET")),
        "behind a link": tried(read(SHOWN + "/link")),
        "names beside": tried(lambda: " ".join(os.listdir(SHOWN + "/.."))),
    }
"""


def shown_to(directory: Path, **known: object) -> str:
    """The source of a stranger that also tries what it can with a directory that is shown to it; makes that, with a
    secret beside it."""
    shown = directory / "shown"
    shown.mkdir(mode=0o755)
    (shown / "data").write_text("tokens")
    (directory / "SECRET").write_text("key")
    (shown / "link").symlink_to(directory / "SECRET")
    for file in (shown / "data", directory / "SECRET"):
        file.chmod(0o644)
    return stranger(**known, SHOWN=str(shown)) + _SHOWN


def stranger(**known: object) -> str:
    """Its source; it is told of HERE, HOME, PYTHON, HOST_PID, PORT and SOCKET."""
    constants = "".join(f"{name} = {value!r}\n" for name, value in known.items())
    return (ROOT / "examples/my_model.py").read_text(encoding="utf-8") + constants + _TRIED


def got_out(tried: dict[str, str]) -> dict[str, str]:
    """The attempts that did not fail."""
    failed = {"shadow": {"empty", "PermissionError", "FileNotFoundError"}}
    return {name: became for name, became in tried.items() if became not in failed.get(name, _REFUSED)}


def told(text: str) -> list[dict[str, Any]]:
    """What processes have said in `text`."""
    return [json.loads(line) for line in re.findall(r"^ESCAPES (.*)$", text, re.MULTILINE)]
