"""Imports torch, and everything else that a worker needs: once, in the process that all workers are forked from."""

from __future__ import annotations

import torch

import testbed.train.gpt
import testbed.train.gpt_layers
import testbed.train.received
import testbed.train.worker  # noqa: F401 - imported to be there after the fork

torch.set_num_threads(1)
