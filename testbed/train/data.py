"""Training text: the Python standard library's own source, read as bytes. Present on every machine, no download."""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch

CORPUS_BYTES = 2_000_000


@dataclass(frozen=True)
class Corpus:
    """A text as a vector of byte values."""

    tokens: torch.Tensor
    """uint8, shape (CORPUS_BYTES,)."""
    sha256: str

    def batch(
        self, seed: int, iteration: int, microbatch: int, size: int, sequence: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and next-byte targets, both int64 of shape (size, sequence).

        The same arguments give the same text on every rank and for every schedule.
        """
        generator = torch.Generator().manual_seed((seed * 1_000_003 + iteration) * 10_007 + microbatch)
        starts = torch.randint(len(self.tokens) - sequence - 1, (size,), generator=generator)
        windows = torch.stack([self.tokens[s : s + sequence + 1] for s in starts.tolist()]).long()
        return windows[:, :-1], windows[:, 1:]


def load_corpus() -> Corpus:
    """The first CORPUS_BYTES bytes of the standard library's modules, in the order of their names."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= CORPUS_BYTES:
            break
    content = bytes(text[:CORPUS_BYTES])
    tokens = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return Corpus(tokens, hashlib.sha256(content).hexdigest())
