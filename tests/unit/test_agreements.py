"""What two places have to agree on, where one of them cannot ask the other."""

from __future__ import annotations

import torch

from testbed.plan.tensor_exchanges import INSTANTS_BYTES
from testbed.train.tensor_peers import Instants


def test_the_plan_counts_the_instants_that_tensor_ranks_send() -> None:
    assert torch.tensor(Instants(0.0, 0.0, 0.0), dtype=torch.float64).nbytes == INSTANTS_BYTES
