"""For tests/attention/test_batch_prefill_kernels.py of FlashInfer: a step of a server without requests.

Without a GPU the compiled planner is replaced, so that what runs is the part of `plan` in Python.
"""

from types import SimpleNamespace

import flashinfer
import pytest
import torch

device = "cuda:0" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batch sizes for which the compiled planner was called."""
    batch_sizes = []
    if device == "cpu":
        module = SimpleNamespace(plan=lambda *arguments: batch_sizes.append(int(arguments[6])))
        empty = torch.empty

        def unpinned(*shape, pin_memory=False, **options):
            return empty(*shape, **options)

        monkeypatch.setattr(flashinfer.prefill, "get_batch_prefill_module", lambda *_: module)
        monkeypatch.setattr(torch, "empty", unpinned)
    return batch_sizes


@pytest.mark.parametrize("batch_size", [0, 1])
@pytest.mark.parametrize("page_size", [16])
@pytest.mark.parametrize("head_dim", [128])
def test_batch_prefill_with_paged_kv_cache_of_no_requests(planner, batch_size, page_size, head_dim):
    workspace_buffer = torch.empty(16 * 1024 * 1024, dtype=torch.int8, device=device)
    wrapper = flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper(workspace_buffer, "NHD", backend="fa2")
    indptr = torch.arange(batch_size + 1, dtype=torch.int32, device=device)
    wrapper.plan(
        indptr,
        indptr,
        torch.arange(batch_size, dtype=torch.int32, device=device),
        torch.ones(batch_size, dtype=torch.int32, device=device),
        4,
        4,
        head_dim,
        page_size,
        causal=True,
    )
    if device == "cpu":
        return
    q, kv = (torch.randn(*shape, 4, head_dim, device=device).half() for shape in ((batch_size,), (1, 2, page_size)))
    assert wrapper.run(q, kv).shape == q.shape
