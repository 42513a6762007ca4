"""Running sums over the chunks of a kernel that promises `cumsum`: which terms the error of each has.

The decay from token j to token i of a chunk is exp(c_i - c_j), and c_t sums the gates g_l of the tokens l <= t. Every
order of summation adds the same terms: one after the other, from the last to the first, as a tree, in blocks, by pairs
or compensated. Each of its roundings is at most u |partial sum| <= u E_t, where E_t sums |g_l| over l <= t. The gates
of later tokens, however strong, are not in c_t. A decay to the end of the chunk has the error of E_j and that of the
gates after j. B has the latter, since they are exponents between the two tokens.

The gradient of a gate sums the other way: that of c_t over all t >= l of its chunk. Two kinds of roundings enter it:

- Those of the sum itself, u_acc. A kernel may form it as the sum over the chunk minus the sum before l, as
  flash-linear-attention does. So it has the errors of all terms of the chunk (`chunk_totals`).
- Those of operands, u_op, made in the terms before they are summed. The terms before l cancel in that difference, bit
  for bit. So it has the errors of the terms of t >= l (`suffix_sums`).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from packproof.properties.bounds.with_derivative import with_derivative
from packproof.properties.declarations.promises import Promises
from packproof.refs.recurrence import join_sequences, split_sequences


def prefix_sums(exponents: list[Tensor], promises: Promises, template: Tensor) -> Tensor:
    """E: for each token the sum of its chunk up to the token itself. Its derivative is that of the chunk's total."""
    return _over_chunks(lambda x: with_derivative(x.detach().cumsum(0), _total(x)), exponents, promises, template)


def chunk_totals(terms: list[Tensor], promises: Promises, template: Tensor) -> Tensor:
    """For each token the sum over its chunk."""
    return _over_chunks(_total, terms, promises, template)


def suffix_sums(terms: list[Tensor], promises: Promises, template: Tensor) -> Tensor:
    """For each token the sum of its chunk from the token itself on."""
    return _over_chunks(lambda x: x.flip(0).cumsum(0).flip(0), terms, promises, template)


def sequence_start_values(E: Tensor, cu_seqlens: Tensor) -> Tensor:
    """E of the first token of each sequence (s, ...); zero for an empty sequence."""
    return torch.cat([E[:0], *(piece[:1].sum(0, keepdim=True) for piece in split_sequences(E, cu_seqlens))])


def _total(x: Tensor) -> Tensor:
    return x.sum(0, keepdim=True).expand_as(x)


def _over_chunks(
    running_sum: Callable[[Tensor], Tensor], pieces: list[Tensor], promises: Promises, template: Tensor
) -> Tensor:
    """A running sum over each chunk. Chunks start with each sequence if the kernel promises so, else with the pack."""
    blocks = pieces if promises.independent or not pieces else [torch.cat(pieces)]
    chunk = promises.chunk or max(len(template), 1)
    return join_sequences([running_sum(x) for block in blocks for x in torch.split(block, chunk)], template)
