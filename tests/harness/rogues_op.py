"""The op that the rogues of rogues.py pretend to compute: y = x * weight, per token, slack and all."""

from packproof.properties.op import Op


def scaled(x, weight, *, cu_seqlens):
    return x * weight


SCALED = Op(
    name="scaled", reference=scaled, inputs={"x": "t d", "weight": "d"}, outputs={"y": "t d"}, sizes=({"d": 3},)
)
