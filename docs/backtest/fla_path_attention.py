"""flash-linear-attention's PaTH attention at 6b7df989, 721a205a and f0394d2e, beside a plain one in fp64.

Arguments: the lengths of a pack's sequences. It needs a GPU of compute capability 9, on which the triangular solve
loads tiles through a TMA descriptor of the sequence's rows; each call is compared in its output and gradients.
"""

import inspect
import os
import sys
import traceback

os.environ["CUDA_LAUNCH_BLOCKING"] = "1"  # an exception names the launch

import torch
from fla.ops import path_attn
from torch import Tensor

LENGTHS = [int(n) for n in sys.argv[1:]]
NAMES = ("q", "k", "v", "w", "beta", "g")


def attend(q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, g: Tensor) -> Tensor:
    """One sequence and head: q, k, v and w (t, 16), beta and g (t,). Keys are reflected at each later token."""
    keys, sums, ys = k[:0], g.cumsum(0), []
    for i in range(len(q)):
        keys = torch.cat([keys - beta[i] * (keys @ w[i])[:, None] * w[i], k[i : i + 1]])
        ys.append(((keys @ q[i] + sums[i] - sums[: i + 1]) / 4).softmax(0) @ v[: i + 1])
    return torch.stack(ys) if ys else v


def let_specialize() -> None:
    """Drop constexpr parameters from do_not_specialize: Triton ignored them up to 3.2, and refuses them since."""
    for name in [name for name in sys.modules if name.startswith(path_attn.__name__)]:
        for value in vars(sys.modules[name]).values():
            kernel = value.fn if hasattr(value, "fn") and not hasattr(value, "params") else value
            for parameter in getattr(kernel, "params", []):
                if parameter.is_constexpr:
                    parameter.do_not_specialize = parameter.do_not_specialize_on_alignment = False


def computed(tensors: dict[str, Tensor], offsets: Tensor) -> Tensor:
    call = getattr(path_attn, "parallel_path_attn", None) or path_attn.parallel_path_attention
    in_fp32 = ("w", "beta", "g") if "should be float32" in inspect.getsource(sys.modules[call.__module__]) else ()
    passed = {name: (t.float() if name in in_fp32 else t)[None] for name, t in tensors.items()}
    return call(**passed, cu_seqlens=offsets)[0][0]


torch.manual_seed(0)
total = sum(LENGTHS)
drawn = {name: torch.randn(total, 1, 16, dtype=torch.float64) for name in NAMES[:4]}
drawn |= {"w": torch.nn.functional.normalize(drawn["w"], dim=-1), "beta": torch.rand(total, 1, dtype=torch.float64)}
drawn |= {"g": -torch.rand(total, 1, dtype=torch.float64)}
exact = {name: t.bfloat16().double().requires_grad_() for name, t in drawn.items()}
pieces = zip(*(t[:, 0].split(LENGTHS) for t in exact.values()), strict=True)
expected = torch.cat([attend(*piece) for piece in pieces])
dy = torch.randn(total, 16).bfloat16()
expected_gradients = torch.autograd.grad(expected, list(exact.values()), dy.double())

let_specialize()
tensors = {name: t.detach().bfloat16().cuda().requires_grad_() for name, t in exact.items()}
offsets = torch.tensor([0, *LENGTHS]).cumsum(0).cuda()
try:
    y = computed(tensors, offsets)
    gradients = torch.autograd.grad(y, list(tensors.values()), dy[:, None].cuda())
except Exception as error:
    place = [f"{frame.filename.split('/')[-1]}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
    print(f"lengths {LENGTHS}: {str(error).splitlines()[0]} ({', '.join(p for p in place if 'site' not in p)})")
    sys.exit(1)
pairs = {"y": (y[:, 0], expected), **{n: (a, b) for n, a, b in zip(NAMES, gradients, expected_gradients, strict=True)}}
differences = {n: float((a.cpu().double() - b).abs().max() / b.abs().max().clamp(min=1)) for n, (a, b) in pairs.items()}
print(f"lengths {LENGTHS}:", ", ".join(f"{n} {d:.2g} off" for n, d in differences.items()))
sys.exit(not all(d < 0.05 for d in differences.values()))
