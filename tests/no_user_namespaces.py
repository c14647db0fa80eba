"""Runs a command under a seccomp filter that refuses unshare and clone with CLONE_NEWUSER: PROGRAM ARGUMENTS...

With `--personality` before these it refuses personality as well.

What container engines do by default, for the two system calls of x86-64 that matter here (seccomp(2), "BPF").
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

_LOAD, _EQUAL, _SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_NUMBER, _FIRST_ARGUMENT = 0, 16
_UNSHARE, _CLONE, _PERSONALITY, _CLONE_NEWUSER = 272, 56, 135, 0x10000000
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2


def program(refused: int) -> tuple[tuple[int, int, int, int], ...]:
    """The filter; `refused` is the number of a further call."""
    return (
        (_LOAD, 0, 0, _NUMBER),
        (_EQUAL, 2, 0, _UNSHARE),
        (_EQUAL, 1, 0, refused),
        (_EQUAL, 1, 3, _CLONE),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_SET, 1, 0, _CLONE_NEWUSER),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    )


def main() -> None:
    """Take the filter on, and become the command."""
    more = sys.argv[1] == "--personality"
    instructions = program(_PERSONALITY if more else _UNSHARE)
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(code)
    filtering = struct.pack("@HP", len(instructions), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _MODE_FILTER, filtering, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")
    words = sys.argv[1 + more :]
    os.execvp(words[0], words)


if __name__ == "__main__":
    main()
