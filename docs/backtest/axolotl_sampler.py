"""axolotl's multipack sampler at 8dfadc2b and 20620771: packs for one row are filled in order of arrival.

A batch of one pack is closed at the first document that does not fit, so that more packs are made than by first fit.
"""

import sys
from types import ModuleType

sys.modules["numba"] = ModuleType("numba")
sys.modules["numba"].njit = lambda function: function

import numpy as np
from axolotl.utils.samplers import MultipackBatchSampler

lengths = np.array([6, 5] * 6)
batches = MultipackBatchSampler(range(len(lengths)), batch_size=1, batch_max_len=10, lengths=lengths)
packs = [[int(lengths[document]) for document in pack] for batch in batches for pack in batch]
print(len(packs), "packs:", packs, "first fit: 9, of which 3 have two documents of 5")
