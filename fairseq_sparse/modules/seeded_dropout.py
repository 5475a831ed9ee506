"""fairseq's dropout, with the masks of :func:`fairseq_sparse.ops.dropout.dropout`."""

from typing import Any

import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from fairseq_sparse.modules.attention_config import attention_kinds
from fairseq_sparse.ops.dropout import dropout


class SeededDropout(FairseqDropout):
    """fairseq's dropout module; on a CPU its masks are computed from a seed instead of kept."""

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """Same as in fairseq, but never in place."""
        if self.p > 0 and (self.training or self.apply_during_inference):
            if torch.jit.is_scripting():  # TorchScript compiles PyTorch's operations only
                return F.dropout(x, self.p)
            return dropout(x, self.p)
        return x


def set_dropout(model: nn.Module, args: Any) -> None:
    """Replace fairseq's dropout by :class:`SeededDropout` in a model built from these flags.

    A model with softmax everywhere, in output and attention, keeps fairseq's dropout, so that it
    computes exactly what the stock model does.
    """
    kinds = {str(args.output_transform), *attention_kinds(args).values()}
    if kinds == {"softmax"}:
        return
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is FairseqDropout:
                setattr(module, name, SeededDropout(child.p, child.module_name))
