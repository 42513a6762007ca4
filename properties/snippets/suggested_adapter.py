"""Suggests an adapter for a kernel with other argument names than the op's: a guess, to be read first."""

from collections.abc import Sequence

from packproof.properties.snippets.argument_names import BOUNDARIES, is_of_keys, meaning_of
from packproof.properties.snippets.pasted_lines import PLACEHOLDER, PastedLines, dict_text


def suggested_adapter(
    pasted: PastedLines,
    missing: Sequence[str],
    unexpected: Sequence[str],
    optional: Sequence[str] = (),
    *,
    packs_keys: bool = False,
) -> tuple[str, ...]:
    """Lines to map the missing arguments of the op to the unexpected ones of the kernel.

    missing: the op's arguments unknown to the kernel, in order.
    unexpected: the kernel's required arguments unknown to the op.
    optional: its other arguments unknown to the op. They are used if it has no boundaries otherwise.
    packs_keys: whether keys have offsets of their own.
    """
    meanings = {name: meaning for name in unexpected if (meaning := meaning_of(name))}
    if "cu_seqlens" not in missing:
        meanings = {"cu_seqlens": "cu_seqlens", **meanings}
    elif not set(meanings.values()) & {*BOUNDARIES}:
        meanings |= {name: meaning for name in optional if (meaning := meaning_of(name))} or {PLACEHOLDER: "cu_seqlens"}
    remaining = [name for name in unexpected if name not in meanings]
    inputs = [name for name in missing if name != "cu_seqlens"]
    kernel_names = [*map(repr, remaining), *[PLACEHOLDER] * len(inputs)]
    names = dict(zip(inputs, kernel_names, strict=False))
    constants = remaining[len(names) :]
    of_keys = {name for name in meanings if packs_keys and is_of_keys(name)}
    if meanings == {"cu_seqlens": "cu_seqlens"}:  # what `adapt` passes by default
        meanings = {}
    metadata = {name: f"OfKeys({meaning})" if name in of_keys else meaning for name, meaning in meanings.items()}
    texts = {
        "names": names,
        "metadata": metadata,
        "given": dict.fromkeys(constants, PLACEHOLDER),
    }
    functions = {*meanings.values(), *(["OfKeys"] if of_keys else [])}
    return pasted.adapter({name: dict_text(values) for name, values in texts.items() if values}, functions)
