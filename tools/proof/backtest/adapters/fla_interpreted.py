"""fla's convolution where kernels are interpreted: at many commits it asks for a driver of Triton."""

import torch
from fla import utils

from packproof.proof.backtest.adapters.fla import causal_conv1d

__all__ = ["causal_conv1d"]

if not torch.cuda.is_available():
    # it chooses a block size by it
    utils.get_multiprocessor_count = lambda *_: 1
