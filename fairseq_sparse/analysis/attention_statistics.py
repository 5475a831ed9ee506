"""How sparse the attention of a Transformer is, head by head, over a data set.

Two rates, as ReLA reports them (Zhang, Titov, Sennrich 2021, "Sparse Attention with Linear Units"):

- **sparsity rate** (Fig. 3): the share of exact zeros among the attention weights. Only pairs of a
  query and a key that it may see count: not padding, nor the future in the decoder.
- **null rate** (Fig. 6): the share of queries that attend to nothing, all of their weights being 0.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Optional

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_sparse.ops.attention import HIDES

# The three places of attention in a Transformer, as reports call them.
PLACES = ("encoder", "decoder", "cross")
_RATES = ("sparsity", "null")

Observer = Callable[[str, int, Tensor, Tensor], None]


class AttentionStatistics:
    """Sparsity rate and null rate of every attention head, counted batch by batch.

    It works for ``transformer_sparse`` and for fairseq's ``transformer``, and keeps counts only.

    Args:
        model: with an encoder and a decoder; it is put into eval mode.
        padding_index: of source and target dictionary.

    Raises:
        ValueError: the model is no Transformer with fairseq's attention.
    """

    def __init__(self, model: nn.Module, padding_index: int):
        self.model = model.eval()
        self.padding_index = padding_index
        self.modules = attention_modules(model)
        self.counts = {place: [0] * len(layers) for place, layers in self.modules.items()}
        self.sentences = 0

    @torch.no_grad()
    def add_batch(self, net_input: Mapping[str, Tensor]) -> None:
        """Run the model on a batch, given the reference, and count.

        Args:
            net_input: fairseq's ``src_tokens`` ``[batch, source length]``, ``src_lengths``
                ``[batch]`` and ``prev_output_tokens`` ``[batch, target length]``.
        """
        source = net_input["src_tokens"].eq(self.padding_index)
        target = net_input["prev_output_tokens"].eq(self.padding_index)

        def count(place: str, layer: int, weights: Tensor, hidden: Tensor) -> None:
            padding = source if place == "encoder" else target
            self.counts[place][layer] += count_zeros(weights, hidden, padding)

        with watch_attention(self.model, count):
            self.model(**net_input, features_only=True)
        self.sentences += len(source)

    def rates(self) -> dict[str, dict[str, Any]]:
        """The rates so far, from 0 to 1, of each place, layer and head.

        Returns:
            For each place that the model has: ``sparsity`` and ``null``, the mean over its
            layers, and ``layers``: for each the kind of ``attention``, ``sparsity`` and ``null``,
            the mean over its heads, and ``heads``: for each ``sparsity`` and ``null``.

        Raises:
            ValueError: no batch was counted, or weights were NaN.
        """
        if self.sentences == 0:
            raise ValueError("no sentence was counted")
        result = {}
        for place, modules in self.modules.items():
            layers = [
                {"attention": getattr(module, "attention_kind", "softmax"), **_layer_rates(counts)}
                for module, counts in zip(modules, self.counts[place], strict=True)
            ]
            if layers:
                result[place] = {**_mean_rates(layers), "layers": layers}
        return result


def count_zeros(weights: Tensor, hidden: Tensor, padding: Tensor) -> Tensor:
    """Count what the two rates are made of.

    Args:
        weights: ``[heads, batch, queries, keys]``.
        hidden: boolean, true for keys that a query may not see; broadcasts with
            ``[batch, queries, keys]``.
        padding: ``[batch, queries]``, boolean, true for queries that are padding.

    Returns:
        ``[heads, 5]`` of int64: weights that are 0, weights, queries whose weights are all 0,
        queries, weights that are NaN. Hidden keys, padding, and queries that see no key at all
        are left out.
    """
    visible = (~(hidden | padding[:, :, None])).expand(weights.shape[1:])
    nonzero = (weights != 0) & visible
    pairs, queries = visible.sum(), visible.any(-1).sum()
    return torch.stack(
        [
            pairs - nonzero.sum((1, 2, 3)),
            pairs.expand(len(weights)),
            queries - nonzero.any(-1).sum((1, 2)),
            queries.expand(len(weights)),
            (weights.isnan() & visible).sum((1, 2, 3)),
        ],
        dim=1,
    )


def attention_modules(model: nn.Module) -> dict[str, list[MultiheadAttention]]:
    """The attention modules of a Transformer: for each of ``PLACES`` one a layer, or none.

    Raises:
        ValueError: the model is no Transformer with fairseq's attention.
    """
    try:
        encoder, decoder = list(model.encoder.layers), list(model.decoder.layers)
        modules = {
            "encoder": [layer.self_attn for layer in encoder],
            "decoder": [layer.self_attn for layer in decoder],
            "cross": [layer.encoder_attn for layer in decoder if layer.encoder_attn is not None],
        }
    except (AttributeError, TypeError):
        modules = {"encoder": [None]}
    if not all(isinstance(x, MultiheadAttention) for layers in modules.values() for x in layers):
        raise ValueError(
            f"{type(model).__name__} is no Transformer of fairseq with an encoder and a decoder"
        )
    return modules


@contextmanager
def watch_attention(model: nn.Module, observe: Observer) -> Iterator[None]:
    """Show the weights of every attention head to ``observe`` while the model runs.

    For forward passes over whole sentences; with incremental decoding it must not be used. The
    model's results stay the same, but that it returns no attention.

    Args:
        model: see :func:`attention_modules`.
        observe: called with the place, the number of the layer from 0, the weights
            ``[heads, batch, queries, keys]`` before dropout, and a boolean tensor, true for keys
            that a query may not see, which broadcasts with ``[batch, queries, keys]``.
    """
    handles = []
    # fairseq 0.12.2: a loaded encoder layer in eval mode may take a fused path past self_attn.
    fused = [layer for layer in model.encoder.layers if getattr(layer, "can_use_fastpath", False)]

    def report_to(place, number):
        def hook(module, arguments, options, result):
            output, weights = result
            observe(place, number, weights, _hidden(options, weights))
            return output, None

        return hook

    try:
        for layer in fused:
            layer.can_use_fastpath = False
        for place, modules in attention_modules(model).items():
            for number, module in enumerate(modules):
                handles += [
                    module.register_forward_pre_hook(_ask_for_weights, with_kwargs=True),
                    module.register_forward_hook(report_to(place, number), with_kwargs=True),
                ]
        yield
    finally:
        for handle in handles:
            handle.remove()
        for layer in fused:
            layer.can_use_fastpath = True


def _ask_for_weights(module, arguments, options):
    # Without static_kv fairseq's own module would leave the work to PyTorch, which returns the mean
    # over the heads; where nothing is kept from earlier steps static_kv does nothing else.
    return arguments, {
        **options,
        "need_weights": True,
        "need_head_weights": True,
        "static_kv": True,
    }


def _hidden(options: Mapping[str, Any], weights: Tensor) -> Tensor:
    """Which keys the arguments of an attention module hide, as in :func:`watch_attention`."""
    hidden = weights.new_zeros((1, 1, 1), dtype=torch.bool)
    padding: Optional[Tensor] = options.get("key_padding_mask")  # [batch, keys]
    mask: Optional[Tensor] = options.get("attn_mask")  # [queries, keys]
    if padding is not None:
        hidden = hidden | padding.bool()[:, None, :]
    if mask is not None:
        hidden = hidden | (mask <= HIDES if mask.is_floating_point() else mask.bool())
    return hidden


def _layer_rates(counts: Tensor) -> dict[str, Any]:
    heads = []
    for zeros, pairs, nulls, queries, nans in counts.tolist():
        if nans > 0:
            raise ValueError("attention weights are NaN: the model's parameters are no good")
        heads.append({"sparsity": zeros / pairs, "null": nulls / queries})
    return {**_mean_rates(heads), "heads": heads}


def _mean_rates(parts: list[dict[str, Any]]) -> dict[str, float]:
    return {name: sum(part[name] for part in parts) / len(parts) for name in _RATES}
