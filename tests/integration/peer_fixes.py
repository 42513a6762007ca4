"""`python -m tests.integration.peer_fixes DIR` copies fla, flash_attn and mamba_ssm to DIR, with fixes of docs/peers.

With `PYTHONPATH=DIR` a script of docs/peers then runs against the fixed package. Raises ValueError where an installed
package is not the one that a fix is for.
"""

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

_STEP = "mamba_ssm/ops/triton/selective_state_update.py"
_RECURRENT = "fla/ops/common/fused_recurrent.py"
_RECURRENT_DELTA = "fla/ops/delta_rule/fused_recurrent.py"
_KDA, _DELTA = "fla/ops/kda/chunk.py", "fla/ops/delta_rule/chunk.py"
_PADDING = """
def without_padding(x, cu_seqlens):
    if cu_seqlens is None:
        return x
    past = torch.arange(x.shape[1], device=x.device) >= cu_seqlens[-1]
    return x.masked_fill(past.view(1, -1, *[1] * (x.ndim - 2)), 0)

"""
_GRADIENTS = {
    file: f"        {names} = (without_padding(x, cu_seqlens) for x in ({names}))\n"
    for file, names in ((_KDA, "dq, dk, dv, dg, db"), (_DELTA, "dq, dk, dv, db"))
}


@dataclass(frozen=True)
class Fix:
    """One edit of a file, for the report of this name: old stands in it once."""

    report: str
    file: str
    old: str
    new: str


FIXES = (
    Fix(
        "fla_constant_decay",
        "fla/ops/common/chunk_h.py",
        """\
            b_g_last = b_gamma * min(BT, T - i_t_int64 * BT)
            b_h *= exp2(b_g_last)
            b_v = (b_v * exp2(b_g_last - b_g)[:, None]).to(b_v.dtype)
""",
        """\
            b_g_last = b_gamma * min(BT, T - i_t_int64 * BT)
            b_h *= exp2(b_g_last)
            b_v = (b_v * tl.where(m_t, exp2(b_g_last - b_g), 0)[:, None]).to(b_v.dtype)
""",
    ),
    Fix(
        "fla_gate_softplus",
        "fla/ops/utils/softplus.py",
        "    return tl.where(x < 20.0, tl.math.log(1 + tl.math.exp(x)), x)\n\n",
        "    return tl.where(x < 20.0, libdevice.log1p(tl.math.exp(x)), x)\n\n",
    ),
    Fix(
        "fla_gate_softplus",
        "fla/ops/utils/softplus.py",
        "from triton import language as tl\n",
        "from triton import language as tl\nfrom triton.language.extra import libdevice\n",
    ),
    Fix(
        "fla_gate_softplus",
        "fla/ops/utils/softplus.py",
        "        return softplus_nv(x)\n",
        "        return softplus_triton(x)\n",
    ),
    Fix(
        "fla_delta_state",
        _RECURRENT_DELTA,
        "    if initial_state is not None and initial_state.requires_grad:\n",
        "    if initial_state is not None:\n",
    ),
    *(
        Fix("fla_compiled_scale", _RECURRENT, anchor, f"    scale = tl.cast(scale, tl.float32)\n{anchor}")
        for anchor in ("    p_o = o + ((i_k * all + bos) + ((T-1) if REVERSE", "    NV = tl.cdiv(V, BV)\n\n    o_k")
    ),
    *(
        Fix(
            "fla_compiled_token",
            _RECURRENT_DELTA,
            anchor,
            f"    T = tl.cast(T, tl.int64)\n{anchor}",
        )
        for anchor in ("    NV, NK = tl.cdiv(V, BV), tl.cdiv(K, BK)\n", "    NV = tl.cdiv(V, BV)\n")
    ),
    Fix(
        "fla_stale_chunks",
        "fla/utils/decorators.py",
        "        for cached_args, cached_kwargs, cached_result in cached:\n",
        """\
        versions = [x._version for x in (*args, *kwargs.values())
                    if isinstance(x, torch.Tensor) and not x.is_inference()]
        for cached_args, cached_kwargs, cached_versions, cached_result in cached:
            if versions != cached_versions:
                continue
""",
    ),
    Fix(
        "fla_stale_chunks",
        "fla/utils/decorators.py",
        "        cached.append((args, kwargs, result))\n",
        "        cached.append((args, kwargs, versions, result))\n",
    ),
    *(
        fix
        for file, returned, gradients in (
            (_KDA, "o.type_as(q)", "        return (dq.to(q), dk.to(k),"),
            (_DELTA, "o.to(q.dtype)", "        return dq.to(q.dtype), dk.to(k.dtype),"),
        )
        for fix in (
            Fix("fla_padding_rows", file, "\n\nclass ", f"\n{_PADDING}\nclass "),
            Fix(
                "fla_padding_rows",
                file,
                f"        return {returned}, final_state\n",
                f"        return without_padding({returned}, cu_seqlens), final_state\n",
            ),
            Fix("fla_padding_rows", file, gradients, f"{_GRADIENTS[file]}{gradients}"),
        )
    ),
    Fix(
        "fa4_small_heads",
        "flash_attn/cute/flash_bwd_sm90.py",
        "        hdim_multiple_of = 64 if dKV_swapAB else 16\n",
        "        hdim_multiple_of = 64 if dKV_swapAB else 32\n",
    ),
    Fix(
        "mamba_update_softplus",
        "mamba_ssm/ops/triton/softplus.py",
        "        return tl.math.log(tl.math.exp(dt) + 1)\n",
        """\
        e = tl.math.exp(dt)
        w = e + 1
        return tl.where(w == 1, e, tl.math.log(w) * (e / (w - 1)))
""",
    ),
    Fix(
        "mamba_update_optional",
        _STEP,
        "    tie_hdim = A.stride(-1) == 0 and A.stride(-2) == 0 and dt.stride(-1) == 0 and dt_bias.stride(-1) == 0\n",
        """\
    tied = dt_bias is None or dt_bias.stride(-1) == 0
    tie_hdim = A.stride(-1) == 0 and A.stride(-2) == 0 and dt.stride(-1) == 0 and tied
""",
    ),
    *(
        Fix(
            "mamba_update_optional",
            _STEP,
            f"            *({x}.stride(0), {x}.stride(1)) if {x} is not None else 0,\n",
            f"            *(({x}.stride(0), {x}.stride(1)) if {x} is not None else (0, 0)),\n",
        )
        for x in ("dt_bias", "D")
    ),
    Fix(
        "mamba_update_many_slots",
        _STEP,
        "    pid_b = tl.program_id(axis=1)\n",
        "    pid_b = tl.program_id(axis=1).to(tl.int64)\n",
    ),
    Fix(
        "mamba_update_many_slots",
        _STEP,
        "        state_batch_idx = tl.load(state_batch_indices_ptr)\n",
        "        state_batch_idx = tl.load(state_batch_indices_ptr).to(tl.int64)\n",
    ),
)


def copies(folder: Path) -> Iterator[str]:
    """Copy each package that is installed to the folder, fixed, and yield its name."""
    for package in dict.fromkeys(fix.file.partition("/")[0] for fix in FIXES):
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            continue
        for place in reversed(list(spec.submodule_search_locations)):
            shutil.copytree(place, folder / package, dirs_exist_ok=True)
        for fix in FIXES:
            if fix.file.startswith(f"{package}/"):
                apply(fix, folder)
        yield package


def apply(fix: Fix, folder: Path) -> None:
    path = folder / fix.file
    text = path.read_text()
    if text.count(fix.old) != 1:
        raise ValueError(f"{fix.file}: expected one of {fix.old!r}, found {text.count(fix.old)}")
    path.write_text(text.replace(fix.old, fix.new))


if __name__ == "__main__":
    print("fixed:", ", ".join(copies(Path(sys.argv[1]))) or "no package of them is installed")
