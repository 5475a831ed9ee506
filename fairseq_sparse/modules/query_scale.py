"""Attention queries that are scaled by the number of keys, for long inputs."""

from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_sparse.ops.masks import MASKED
from fairseq_sparse.ops.precision import at_least_fp32, without_autocast

# Bound of gamma, as in the authors' code.
_LARGEST_POWER = 2.0


class QueryScale(nn.Module):
    """The factor ``1 + beta (log(n + 1))^gamma`` of each head's queries, for a query seeing n keys.

    This is the scaling of ASEntmax ("Long-Context Generalization with Sparse Attention", arXiv
    2506.16640): ``beta = softplus(B x)`` and ``gamma = 2 tanh(G x)``, with affine maps B and G of
    the layer's input x at the query's position; the authors' code makes their biases optional, and
    the commands in its README turn them on. In a decoder's self-attention ``n + 1`` is the position
    (counted from 0) plus 2, as in the authors' code; here it is also defined for padding, encoders
    and cross-attention. Weights are drawn from N(0, 0.02^2), and biases start at 0, as in the
    authors' code, which takes this from Gemma 2.

    Args:
        width: the width of the layer's input.
        heads: number of heads.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.beta, self.gamma = nn.Linear(width, heads), nn.Linear(width, heads)
        for linear in (self.beta, self.gamma):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """Return the factors of the queries, ``[batch, heads, queries, 1]``, in fp32 or better.

        Args:
            x: input of the layer, ``[queries, batch, width]``.
            visible: how many keys each query sees; broadcasts with ``[batch, heads, queries]``.
        """
        beta, gamma = (
            at_least_fp32(linear(x)).permute(1, 2, 0) for linear in (self.beta, self.gamma)
        )
        # At least 1, as 0 has no negative power; without keys the weights are 0 for any factor.
        length = visible.to(beta.dtype).clamp(min=1).log1p()
        scale = 1 + F.softplus(beta) * length ** (_LARGEST_POWER * torch.tanh(gamma))
        return scale.unsqueeze(-1)


def count_visible(key: Tensor, masked: Optional[Tensor], bias: Optional[Tensor]) -> Tensor:
    """Count the keys that each query sees.

    Args:
        key: ``[batch, heads, keys, head_dim]``.
        masked, bias: as in :func:`fairseq_sparse.ops.attention.attend`; a bias of four dimensions
            must have all of the keys.

    Returns:
        The counts in fp32, which broadcast with ``[batch, heads, queries]``.
    """
    seen = None if bias is None else (bias > MASKED).float()
    if masked is None:
        return (
            key.new_full((1,), key.size(2), dtype=torch.float32) if seen is None else seen.sum(-1)
        )
    unmasked = masked.logical_not().float()  # [batch, keys]
    if seen is None:
        return unmasked.sum(-1)[:, None, None]
    with without_autocast(key):  # half precision would round large counts
        if seen.dim() == 2:
            return (unmasked @ seen.T)[:, None]
        return (seen @ unmasked[:, None, :, None]).squeeze(-1)
