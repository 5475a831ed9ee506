"""Without a GPU, kernels run in Triton's interpreter, on tensors of the CPU."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported
