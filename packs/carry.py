"""States carried between packs: a document cut at the end of a pack continues in the next one from its state."""

from collections.abc import Sequence

import torch
from torch import Tensor

from packproof.base.errors import ArgumentError, LayoutError, checked_call
from packproof.base.wording import kind, plural
from packproof.refs.packers import Piece


@checked_call
def carried_states(final_states: Tensor | None, pack: Sequence[Piece], *, through: bool = False) -> Tensor | None:
    """The initial states of a pack, from the final states of the previous pack.

    final_states: (s, ...) of the previous pack, from an op called with return_final_states=True; None for the first.
    pack: the pieces of this pack. Only the first piece can continue a document (`pack_with_split`). Its state is the
    last of final_states; all others are zero.
    through: whether gradients flow back through earlier packs, as in the whole document. Otherwise they end at the cut,
    and backward needs no memory of earlier packs.

    Returns (len(pack), ...) in the dtype of final_states, or None if final_states is None: ops read it as zeros.
    Raises LayoutError for pieces in another order than a packer's, ArgumentError for invalid states.

    >>> import torch
    >>> from packproof.packs import carried_states
    >>> from packproof.refs import pack_with_split
    >>> first, second = pack_with_split([3, 3, 2], capacity=4)
    >>> carried_states(torch.tensor([[1.0], [2.0]]), second)
    tensor([[2.],
            [0.]])
    """
    for i, piece in enumerate(pack):
        if not isinstance(piece, Piece):
            raise LayoutError(
                f"carried_states: pack holds {kind(piece)}; pieces were expected, as a packer returns them"
            )
        if piece.continues and i:
            raise LayoutError(f"carried_states: piece {i} of the pack continues a document; only the first can")
    continues = bool(pack) and pack[0].continues
    if final_states is None:
        if continues:
            raise ArgumentError(
                f"carried_states: final_states is None, but sequence {pack[0].sequence} goes on from token "
                f"{pack[0].start}\n    Give those of the pack before; an op returns them with return_final_states=True."
            )
        return None
    if not isinstance(final_states, Tensor) or not final_states.ndim:
        raise ArgumentError(f"carried_states: final_states is {kind(final_states)}; a tensor (s, ...) was expected")
    if continues and not len(final_states):
        raise ArgumentError(f"carried_states: final_states has {plural(0, 'sequence')}, but the pack continues one")
    zero_states = final_states.new_zeros(len(pack) - continues, *final_states.shape[1:])
    if not continues:
        return zero_states
    carried_state = final_states[-1:] if through else final_states[-1:].detach()
    return torch.cat([carried_state, zero_states])
