"""Megatron-Bridge's offline packing at 99bdc5d9: a longer document is left out, and ends the job where all are longer.

create_hist skips it with a warning. Where that leaves no document, create_packing_strategy divides by the number of
packs, which is 0.
"""

import numpy as np
from megatron.bridge.data.datasets.packing_utils import create_hist, create_packing_strategy

for lengths in ([5, 21, 1], [11]):
    rows = np.array([{"input_ids": [0] * (n + 1)} for n in lengths], dtype=object)
    sequences, histogram = create_hist(rows, 10)
    print(f"documents of {lengths} tokens, packs of 10: {sum(histogram)} of {len(lengths)} are packed")
    try:
        create_packing_strategy(histogram, 10, "first_fit_decreasing")
    except ZeroDivisionError as error:
        print("ZeroDivisionError:", error)
