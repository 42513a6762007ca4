"""flash-linear-attention's KDA at bb1f9b9c: values of fewer than 16 columns have no backward pass.

In one of its kernels a block has as many columns as the values, and Triton multiplies no matrices of fewer than 16: it
does not compile, here for compute capability 9. The forward pass takes such values.
"""

import sys

import triton
from fla.ops.gla.chunk import chunk_gla_bwd_kernel_dA as kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

while not hasattr(kernel, "params"):  # within its autotuner and heuristics
    kernel = kernel.fn
TYPES = {"v": "*bf16", "do": "*bf16", "dA": "*fp32", "cu_seqlens": "*i64", "chunk_indices": "*i64"}
TYPES |= {"scale": "fp32", "T": "i32"}


def compiles(width: int) -> bool:
    constants = {"H": 1, "V": width, "BT": 64, "BV": min(64, triton.next_power_of_2(width)), "IS_VARLEN": True}
    types = {parameter.name: TYPES.get(parameter.name, "constexpr") for parameter in kernel.params}
    places = {parameter.name: (i,) for i, parameter in enumerate(kernel.params)}
    source = ASTSource(kernel, types, {places[name]: value for name, value in constants.items()})
    try:
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
    except Exception as error:
        cause = error.__cause__ or error
        print(f"values of {width} columns: {type(error).__name__}: {str(cause).strip().splitlines()[-1].strip()}")
        return False
    print(f"values of {width} columns: it compiles")
    return True


sys.exit((compiles(16), compiles(8)) == (True, False))
