"""Checkpoints as fairseq writes them, with parameters that a test chooses."""

from argparse import Namespace

import numpy as np
import torch

TAU = "decoder.output_projection.tau"


def make_state(weight=0.0, tau=0.75, steps=7, **model_fields):
    """Return a checkpoint with the parts of a real one; `weight` is the value of its matrices."""
    weight = torch.as_tensor(weight, dtype=torch.float32).expand(2, 3).clone()
    return {
        "args": None,
        "cfg": {
            "_name": None,
            "task": {"_name": "translation_sparse", "data": "bin"},
            "model": Namespace(
                arch="transformer_sparse",
                **{"output_transform": "alpha_relu", "output_alpha": 1.5, **model_fields},
            ),
        },
        "model": {
            "encoder.embed_tokens.weight": weight,
            "decoder.embed_tokens.weight": weight,
            "decoder.output_projection.weight": weight,
            "decoder.half": weight.clamp(-1e3, 1e3).half(),
            "decoder.steps": torch.tensor([steps]),
            "decoder.mask": torch.tensor([True, False]),
            TAU: torch.tensor(tau),
        },
        "optimizer_history": [{"num_updates": 3}],
        "extra_state": {"val_loss": np.float64(2.5), "counts": np.array([4, 5])},
        "last_optimizer_state": {"state": {0: {"exp_avg": weight}}},
    }


def write(folder, states):
    """Save states as checkpoint1.pt, checkpoint2.pt ... and return the paths."""
    paths = []
    for number, state in enumerate(states, start=1):
        paths.append(str(folder / f"checkpoint{number}.pt"))
        torch.save(state, paths[-1])
    return paths
