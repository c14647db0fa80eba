"""What we change in the kernel's source: what time costs in a guest, and how often its processes stop for the kernel.

Edits are what virtual time is made of, and are made in every series. Patches make guests faster: virtual time does not
see them. They are of one series, files below `patches/`, each of which says why it is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from testbed.errors import RunFailed
from testbed.vm.build_step import run_program
from testbed.vm.kernel_source import BACKPORTED, INSTALLED, series_of

_PATCH_DEADLINE_S = 60.0

SEED_VARIABLE = "TESTBED_KERNEL_SEED"
"""In the kernel's environment: where its random numbers come from."""

COPIES_VARIABLE = "TESTBED_COPIES_SOCKET"
"""There too: the number of a socket on which it is asked for copies of its guest."""

COPIES = "copies.patch"
"""Kernels without this patch cannot be copied."""

UNWRITTEN = "unwritten-memory.patch"
"""Kernels without this patch copy all that is sent, what pads messages too."""


@dataclass(frozen=True)
class Edit:
    """A change of one source file: `before` must stand there exactly once."""

    file: str
    before: str
    after: str
    why: str


EDITS = (
    Edit(
        "arch/um/Kconfig",
        "config HZ\n\tint\n\tdefault 100\n",
        "config HZ\n\tint\n\tdefault 1000\n",
        "TCP's timers count jiffies: 10 ms is too coarse for a lab",
    ),
    Edit(
        "arch/um/os-Linux/util.c",
        "\treturn getrandom(buf, len, flags);\n",
        f"""\tstatic unsigned long long state;
	const char *seed = getenv("{SEED_VARIABLE}");
	unsigned char *bytes = buf;
	size_t i;

	if (!seed)
		return getrandom(buf, len, flags);
	if (!state)
		state = 0x9e3779b97f4a7c15ULL * (strtoull(seed, NULL, 10) + 1) | 1;
	for (i = 0; i < len; i++) {{
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		bytes[i] = state >> 32;
	}}
	return len;
""",
        "the same seed gives the same ports, sequence numbers and hash keys in every boot",
    ),
    Edit(
        "arch/um/kernel/skas/syscall.c",
        "\t\tif (IS_ERR_VALUE(ret) &&\n",
        "\t\tif ((IS_ERR_VALUE(ret) || syscall == __NR_sched_yield) &&\n",
        "a loop of sched_yield (gloo has one) must let time advance, or the guest hangs",
    ),
    Edit(
        "arch/um/kernel/skas/syscall.c",
        "\t\t\tum_udelay(1);\n",
        "\t\t\tum_ndelay(syscall == __NR_sched_yield ? 1000 : 10);\n",
        "a call that fails takes time, so that loops of them end: two for a message, which are no part of the model",
    ),
    Edit(
        "arch/um/include/linux/time-internal.h",
        "#define TIMER_MULTIPLIER 256\n#define TIMER_MIN_DELTA  500\n",
        "#define TIMER_MULTIPLIER 1\n#define TIMER_MIN_DELTA  1\n",
        "whoever reads the clock moves virtual time by the first, in ns, which is the unit of measured times as well: "
        "a message reads it some 17 times, and hundreds at one instant would delay each other; and a timer that is "
        "due at once is late by the second",
    ),
)

EDITS_OF_SERIES = {
    "6.12": (
        Edit(
            "arch/x86/um/user-offsets.c",
            "\tDEFINE_LONGS(HOST_FP_SIZE, 2696);\n",
            "\tDEFINE_LONGS(HOST_FP_SIZE, 12288);\n",
            "a CPU with AMX has 11,008 bytes of vector registers, and its kernel takes all of them back or none",
        ),
        Edit(
            "arch/um/Kconfig",
            "\tdefault 2 if 64BIT\n",
            "\tdefault 4 if 64BIT\n",
            "a stack of this kernel holds a copy or two of these registers, for which its 16 KB are too few",
        ),
    )
}
"""What one series needs besides: 7.2 asks the host for the size of its registers."""


class RecipeDoesNotFit(RunFailed):
    """A series of the kernel that our edits or our configuration were not made for."""


def edits_of(version: str) -> tuple[Edit, ...]:
    """Every edit of that version's source."""
    return EDITS + EDITS_OF_SERIES.get(series_of(version), ())


def patches_of(version: str) -> dict[str, str]:
    """Every patch of that version's source by its name, in the order in which they are made."""
    directory = files("testbed.vm") / "patches" / series_of(version)
    if not directory.is_dir():
        return {}
    found = sorted(directory.iterdir(), key=lambda file: file.name)
    return {file.name: file.read_text(encoding="utf-8") for file in found if file.name.endswith(".patch")}


def apply_edits(tree: Path, edits: Sequence[Edit]) -> None:
    """Make edits in an unpacked source tree. Raises RecipeDoesNotFit when a text to be replaced is not there once."""
    for edit in edits:
        path = tree / edit.file
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise RecipeDoesNotFit(f"kernel source: {edit.file}: {error.strerror}; edit: {edit.why}") from error
        if (found := text.count(edit.before)) != 1:
            raise RecipeDoesNotFit(
                f"kernel source: {edit.file}: the text to edit stands there {found} times, expected once; this is no "
                f"Linux {INSTALLED} or {BACKPORTED}, which our edits were made for; edit: {edit.why}"
            )
        path.write_text(text.replace(edit.before, edit.after), encoding="utf-8")


def apply_patches(tree: Path, patches: Mapping[str, str]) -> None:
    """Apply unified diffs to an unpacked source tree. Raises RecipeDoesNotFit where one is not of exactly this text."""
    for name, text in patches.items():
        (tree / name).write_text(text, encoding="utf-8")
        command = ["patch", "--strip=1", "--forward", "--batch", "--fuzz=0", f"--input={name}"]
        try:
            run_program(command, tree, deadline_s=_PATCH_DEADLINE_S)
        except RunFailed as error:
            raise RecipeDoesNotFit(f"kernel source: {name} does not apply: {error}") from error
