"""fairseq's dropout, with the masks of :func:`fairseq_sparse.ops.dropout.dropout`."""

from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from fairseq_sparse.ops.dropout import dropout


def stock_name(dropout: FairseqDropout) -> str:
    """Return the name of the class that a dropout belongs to, without the prefix that this package
    puts before fairseq's name of it."""
    return (dropout.module_name or "").removeprefix("Sparse")


class SeededDropout(FairseqDropout):
    """fairseq's dropout module; on a CPU its masks are computed from a seed instead of kept."""

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """Same as in fairseq, but never in place."""
        if self.p > 0 and (self.training or self.apply_during_inference):
            if torch.jit.is_scripting():  # TorchScript compiles PyTorch's operations only
                return F.dropout(x, self.p)
            return dropout(x, self.p)
        return x

    def make_generation_fast_(
        self,
        name: str,
        retain_dropout: bool = False,
        retain_dropout_modules: Optional[list[str]] = None,
        **options: Any,
    ) -> None:
        """Same as in fairseq, which compares the class that a dropout belongs to with
        ``--retain-dropout-modules``; a class of this package also goes by the name of fairseq's."""
        stock = stock_name(self)
        if retain_dropout_modules and {stock, f"{stock}Base"} & set(retain_dropout_modules):
            retain_dropout_modules = [*retain_dropout_modules, self.module_name]
        super().make_generation_fast_(name, retain_dropout, retain_dropout_modules, **options)


def set_dropout(model: nn.Module) -> None:
    """Replace fairseq's dropout by :class:`SeededDropout` in a model, whatever its output and
    attention, so that their speeds are compared with the same dropout."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is FairseqDropout:
                setattr(module, name, SeededDropout(child.p, child.module_name))
