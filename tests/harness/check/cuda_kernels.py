"""A kernel of y = x * weight in CUDA C++, launched through the driver: no hook of Python sees it."""

# mypy: allow-untyped-defs, allow-untyped-calls

from functools import cache

import torch

from tests.harness.check.provenance_kernels import PRODUCT, _TorchBackward

__all__ = ["PRODUCT", "through_the_driver"]
_SOURCE = """
extern "C" __global__ void product_kernel(const float* x, const float* weight, float* y, int n, int d) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * weight[i % d];
}
"""


@cache
def _kernel():
    return torch.cuda._compile_kernel(_SOURCE, "product_kernel")


class _ThroughTheDriver(_TorchBackward):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        x, y = x.contiguous(), torch.empty(x.shape, device=x.device)
        if x.numel():
            arguments = [x, weight.contiguous(), y, x.numel(), x.shape[1]]
            _kernel()(grid=(-(-x.numel() // 64), 1, 1), block=(64, 1, 1), args=arguments)
        return y


def through_the_driver(x, weight, *, cu_seqlens):
    return _ThroughTheDriver.apply(x, weight)
