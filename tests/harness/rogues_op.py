"""The op that the rogues of rogues.py claim to compute: y = x * weight for every token, slack included."""

from packproof.properties.ops.op import Op


def scaled(x, weight, *, cu_seqlens):
    return x * weight


SCALED = Op(
    name="scaled", reference=scaled, inputs={"x": "t d", "weight": "d"}, outputs={"y": "t d"}, sizes=({"d": 3},)
)
