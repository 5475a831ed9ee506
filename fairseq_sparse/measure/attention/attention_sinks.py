"""Attention sinks: the shares of attention that go to the first key and to EOS.

Softmax must attend to something. If a head finds nothing relevant, its weights tend to gather on
one key with little meaning (Xiao et al. 2024, arXiv 2309.17453). Attention that can be null need
not do so.
"""

import torch
from torch import Tensor

# The sinks, in the order of the columns.
SINKS = ("first", "eos")


def sum_of_shares(weights: Tensor, masked: Tensor, padding: Tensor, place: str) -> Tensor:
    """Add up the shares of the sinks in the weights of each query.

    The share of a key is its weight over the sum of the query's weights; for weights below 0,
    absolute values are taken. EOS is the last key of the source; in the decoder, whose input
    begins with EOS in fairseq, it is the first.

    Args:
        weights: ``[heads, batch, queries, keys]``.
        masked: boolean, true for keys that a query may not see; broadcasts with
            ``[batch, queries, keys]``.
        padding: ``[batch, queries]``, boolean, true for queries that are padding.
        place: ``encoder``, ``decoder`` or ``cross``.

    Returns:
        ``[heads, 4]`` of float64: the sums for ``SINKS`` over the queries that have any weight, the
        number of such queries, and the sum of all weights.
    """
    visible = (~(masked | padding[:, :, None])).expand(weights.shape[1:])
    keys = visible.any(1)  # [batch, keys]
    first = keys.byte().argmax(1)
    last = keys.size(1) - 1 - keys.byte().flip(1).argmax(1)
    sizes = weights.double().abs() * visible
    total = sizes.sum(-1)  # [heads, batch, queries]
    shares = [
        sizes.gather(3, key[None, :, None, None].expand(*total.shape, 1)).squeeze(3)
        for key in (first, first if place == "decoder" else last)
    ]
    found = [(share / total).nan_to_num().sum((1, 2)) for share in shares]
    return torch.stack([*found, (total > 0).sum((1, 2)), total.sum((1, 2))], dim=1)
