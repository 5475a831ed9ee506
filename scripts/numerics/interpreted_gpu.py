"""GPU kernels in Triton's interpreter: tensors of the CPU take the road of CUDA tensors."""

from torch.utils._python_dispatch import TorchDispatchMode


class InterpretedGPU(TorchDispatchMode):
    """A context in which the operators call their GPU kernels, where these apply."""

    def __init__(self):
        super().__init__()
        self.used = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        from fairseq_sparse.ops.gpu import rela_attention, rows

        name = function._schema.name.removeprefix("fairseq_sparse::")
        module = rela_attention if name.startswith("attention") else rows
        fits = getattr(module, f"fits_{name}", None)
        if fits is not None and fits(*args):
            self.used.add(name)
            return getattr(module, name)(*args)
        return function(*args, **(kwargs or {}))
