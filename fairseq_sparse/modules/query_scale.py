"""Attention queries that are scaled by the number of keys, for long inputs."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_sparse.ops.precision import at_least_fp32

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
