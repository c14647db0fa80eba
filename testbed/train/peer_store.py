"""The store over which ranks on several machines find each other: that of torchrun, or one that rank 0 opens."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch.distributed as dist

TCP = "tcp://"

STORE_TIMEOUT_S = 60.0
"""Of one question to the store."""


def connected(url: str, *, opens: bool = False, within_s: float = STORE_TIMEOUT_S) -> Any:
    """The store at tcp://HOST:PORT/PREFIX, where the keys of whoever has the same prefix are apart from others'.

    `opens`: whether it is this process that is to hold it. Raises RuntimeError when it is not there in time.
    """
    place = urlsplit(url)
    assert place.hostname is not None
    assert place.port is not None
    timeout = timedelta(seconds=within_s)
    # both are there for everybody, and not marked so
    store = dist.TCPStore(  # type: ignore[attr-defined]
        place.hostname, place.port, is_master=opens, timeout=timeout, wait_for_workers=False
    )
    return dist.PrefixStore(place.path.strip("/"), store)  # type: ignore[attr-defined]
