"""Attention of one sentence at a time, from the definitions and with plain loops."""

import itertools
from functools import partial

import torch

from fairseq_sparse.measure.attention.attention_statistics import (
    attention_kind,
    attention_modules,
)
from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS


def sentences(net_input, pad):
    """Yield the sentences of a batch one by one, without padding."""
    for source, length, target in zip(*net_input.values(), strict=True):
        yield {
            "src_tokens": source[source != pad][None],
            "src_lengths": length[None],
            "prev_output_tokens": target[target != pad][None],
        }


def weights(model, net_input):
    """Return (place, layer) -> head -> query -> weights of the visible keys, as lists.

    They are computed by the definition, from the inputs of the attention modules for one unpadded
    sentence.
    """
    result, handles = {}, []

    def hook_for(place, layer):
        def hook(module, arguments, options):
            query, key = (module_input[:, 0] for module_input in (options["query"], options["key"]))
            width = module.head_dim
            queries = module.q_proj(query) * width**-0.5
            keys = module.k_proj(key)
            kind = ATTENTION_KINDS[attention_kind(module)]
            alpha = {"alpha": module.fixed_alpha} if kind.takes_alpha else {}
            weights_of = partial(kind.weights, **alpha)
            heads = []
            for head in range(module.num_heads):
                part = slice(head * width, (head + 1) * width)
                rows = []
                for position, row in enumerate(queries):
                    seen = keys[: position + 1] if place == "decoder" else keys
                    rows.append(weights_of(seen[:, part] @ row[part]).tolist())
                heads.append(rows)
            result[place, layer] = heads

        return hook

    for place, modules in attention_modules(model).items():
        for layer, module in enumerate(modules):
            hook = hook_for(place, layer)
            handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
    with torch.no_grad():
        model.eval()(**net_input)
    for handle in handles:
        handle.remove()
    return result


def words(pieces, subwords="subword_nmt"):
    """Return the number of each piece's word; EOS is a word."""
    numbers = [0]
    for before, piece in itertools.pairwise(pieces):
        begins = {
            "subword_nmt": not before.endswith("@@"),
            "sentencepiece": piece.startswith("▁"),
            "none": True,
        }[subwords]
        numbers.append(numbers[-1] + (begins or piece == "</s>"))
    return numbers
