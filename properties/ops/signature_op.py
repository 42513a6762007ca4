"""An op made of its signature."""

from collections.abc import Mapping
from typing import Any

from packproof.base.signatures import Signature
from packproof.properties.ops.op import Op


def op_of_signature(
    signature: Signature, *, options: Mapping[str, Any] | None = None, conditions: tuple[str, ...] = (), **fields: Any
) -> Op:
    """The op of a signature.

    options: values to try of options without a list of values in the signature.
    conditions: conditions on sizes, in addition to the signature's groups.
    fields: further fields of `Op`.
    """
    return Op(
        name=signature.op,
        inputs=signature.inputs,
        outputs=signature.outputs,
        options={**signature.options, **(options or {})},
        where=(*(f"{dividend} % {divisor} == 0" for divisor, dividend in signature.groups.items()), *conditions),
        fixed=signature.fixed,
        float32=signature.float32 | signature.tables,
        narrow=signature.narrow,
        constants=signature.tables | signature.integers,
        **fields,
    )
