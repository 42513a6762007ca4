"""FlashInfer: the plan of a step without requests raises; a step of a request without tokens is planned and run."""

import torch
from flashinfer import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper

HEADS, WIDTH, PAGE = 2, 128, 16
workspace = torch.zeros(128 * 2**20, dtype=torch.uint8, device="cuda")
cache = torch.randn(1, 2, PAGE, HEADS, WIDTH, device="cuda", dtype=torch.bfloat16)
options = {"q_data_type": cache.dtype, "kv_data_type": cache.dtype}


def step(wrapper, tokens, *offsets):
    *indptr, last = (torch.tensor(row, dtype=torch.int32, device="cuda") for row in offsets)
    pages = torch.zeros(int(indptr[-1][-1]), dtype=torch.int32, device="cuda")
    wrapper.plan(*indptr, pages, last, HEADS, HEADS, WIDTH, PAGE, **options)
    return tuple(wrapper.run(torch.randn(tokens, HEADS, WIDTH, device="cuda", dtype=cache.dtype), cache).shape)


prefill = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
decode = BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
for name, arguments in {
    "prefill, one request": (prefill, 2, [0, 2], [0, 1], [2]),
    "prefill, a request without tokens": (prefill, 0, [0, 0], [0, 1], [2]),
    "prefill, no request": (prefill, 0, [0], [0], []),
    "decode, one request": (decode, 1, [0, 1], [2]),
    "decode, no request": (decode, 0, [0], []),
}.items():
    try:
        print(f"{name}: shape {step(*arguments)}")
    except Exception as error:
        print(f"{name}: {type(error).__name__} {str(error).splitlines()[0][:150]}")
