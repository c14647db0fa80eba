"""What a worker of a guest finds out about its machine: code that runs once, within the loss of a job's own model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from escapes import TOPOLOGY, WORKLOAD
from one_boot import Asked, Measured, planned

ROOT = Path(__file__).parents[2]

_MODEL = """

class Reader(Mlp):
    def loss(self, *values):
        told()
        return super().loss(*values)
"""


def asked_of_a_worker(place: Path, probe: str) -> Asked:
    """A training in which `told()` is called, which `probe` defines, and which prints a word and a document."""
    code = (ROOT / "examples/my_model.py").read_text(encoding="utf-8") + probe + _MODEL
    for name, text in (("reader.py", code), ("job.yaml", WORKLOAD), ("pair.yaml", TOPOLOGY)):
        (place / name).write_text(text.replace("stranger.py:Stranger", "reader.py:Reader"))
    return Asked(planned(place, place / "pair.yaml", place / "job.yaml"), light=False)


def told_by_a_worker(measured: Measured, word: str) -> dict[str, Any]:
    """The document that it has printed behind that word."""
    text = "".join(path.read_text() for path in sorted((measured.out / "logs").iterdir()))
    (line,) = [line for line in text.splitlines() if line.startswith(f"{word} ")]
    said: dict[str, Any] = json.loads(line.removeprefix(f"{word} "))
    return said
