"""fairseq's dropout, with the masks of :func:`fairseq_sparse.ops.dropout.dropout`."""

import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

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


def set_dropout(model: nn.Module) -> None:
    """Replace fairseq's dropout by :class:`SeededDropout` in a model, whatever its output and
    attention, so that their speeds are compared with the same dropout."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is FairseqDropout:
                setattr(module, name, SeededDropout(child.p, child.module_name))
