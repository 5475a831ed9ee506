"""Sparsity and diversity of a model's attention over a data set.

Sparsity rate (Fig. 3), null rate (Fig. 6) and diversity (Fig. 5) are those of ReLA (Zhang, Titov,
Sennrich 2021, "Sparse Attention with Linear Units"), between tokens or, as in ReLA,
between words. The mean number of nonzero weights per query is that of Table 3 of "Sparse
Sequence-to-Sequence Models" (Peters, Niculae, Martins 2019). Only pairs of a query and a key that
it may see count: not padding, nor the future in the decoder. See also ``attention_sinks`` and
``head_diversity``.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from statistics import fmean, variance
from typing import Any, Optional, Union

import torch
from fairseq.models.lstm import AttentionLayer, LSTMDecoder
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_sparse.measure.attention.attention_sinks import SINKS, sum_of_shares
from fairseq_sparse.measure.attention.head_diversity import EXPONENTS, sum_of_divergences
from fairseq_sparse.measure.attention.subword_merging import SubwordMerger
from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
from fairseq_sparse.ops.attention import MASKED

# The three places of attention in a Transformer, as reports call them.
PLACES = ("encoder", "decoder", "cross")

# One layer of a Transformer, or the attention of an LSTM.
Attention = Union[MultiheadAttention, AttentionLayer]
Observer = Callable[[str, int, Tensor, Tensor], None]


class AttentionStatistics:
    """Sparsity and null rate of every attention head, and diversity of every layer's heads.

    It works for ``transformer_sparse``, ``lstm_sparse``, and for fairseq's ``transformer`` and
    ``lstm``, and keeps counts and sums only.

    Args:
        model: with an encoder and a decoder; it is put into eval mode.
        padding_index: of source and target dictionary.
        diversity: whether to measure the diversity, too, which takes longer.
        places: the places to measure, among ``PLACES``.
        merger: merges subwords, so that attention is measured between words; None for tokens.

    Raises:
        ValueError: the model is none of these, or has no attention in these places.
    """

    def __init__(
        self,
        model: nn.Module,
        padding_index: int,
        diversity: bool = True,
        places: Collection[str] = PLACES,
        merger: Optional[SubwordMerger] = None,
    ):
        self.model = model.eval()
        self.padding_index, self.merger = padding_index, merger
        self.layers = {
            place: [_Layer(place, module, diversity) for module in modules]
            for place, modules in attention_modules(model).items()
            if place in places
        }
        if not any(self.layers.values()):
            raise ValueError(f"the model has no attention ({', '.join(self.layers)})")
        self.sentences = 0

    @torch.no_grad()
    def add_batch(self, net_input: Mapping[str, Tensor]) -> None:
        """Run the model on a batch, teacher-forced, and count.

        Args:
            net_input: fairseq's ``src_tokens`` ``[batch, source length]``, ``src_lengths``
                ``[batch]`` and ``prev_output_tokens`` ``[batch, target length]``.
        """
        with self.counting(net_input):
            self.model.extract_features(**net_input)

    @contextmanager
    def counting(self, net_input: Mapping[str, Tensor]) -> Iterator[None]:
        """Count while the caller runs the model once on a batch, given as in :meth:`add_batch`."""
        source = net_input["src_tokens"].eq(self.padding_index)
        target = net_input["prev_output_tokens"].eq(self.padding_index)
        words = self.merger and self.merger.batch(net_input)

        def count(place: str, layer: int, weights: Tensor, masked: Tensor) -> None:
            padding = source if place == "encoder" else target
            if words:
                weights, masked, padding = words.merge(place, weights, masked)
            self.layers[place][layer].add(weights, masked, padding)

        with watch_attention(self.model, count, self.layers):
            yield
        self.sentences += len(source)

    def rates(self) -> dict[str, dict[str, Any]]:
        """Return what was measured so far, for each place of attention that the model has.

        Returns:
            For each place ``layers``, a list with, for each layer,

            - ``attention``: the kind;
            - ``sparsity`` and ``null``: the mean rates over the heads, from 0 to 1;
            - ``sparsity_variance`` and ``null_variance``, if there are several heads: the sample
              variance of their rates, with the number of heads less one as denominator. ReLA's
              0.256 over 8 heads implies this denominator: dividing by 8, the variance of rates in
              [0, 1] is at most 0.25;
            - ``layer_null``: the null rate of the mean of the heads' weights;
            - ``nonzeros`` and ``sum``: their mean number per query, and the mean sum of its weights
              (of their absolute values), over queries and heads;
            - ``first`` and ``eos``: the shares of the first key and of EOS in the weights, from 0
              to 1; they are equal in the decoder, whose first key is EOS;
            - ``diversity``: of the heads, if there are several, in nats. For weights that do not
              sum to 1 it is measured with the first of ``EXPONENTS``, and
              ``diversity_by_exponent`` has all of them (weights below 0: only the first);
            - ``heads``: ``sparsity``, ``null``, ``nonzeros``, ``sum``, ``first`` and ``eos`` of
              each,

            and, beside ``layers``, the mean of each number over the layers.

        Raises:
            ValueError: no batch was counted, or weights were NaN.
        """
        if self.sentences == 0:
            raise ValueError("no sentence was counted")
        measures = {place: [x.measures() for x in layers] for place, layers in self.layers.items()}
        return {
            place: {**_mean_of(layers), "layers": layers}
            for place, layers in measures.items()
            if layers
        }


class _Layer:
    """The counts of one layer of attention; sums over queries."""

    def __init__(self, place: str, module: Attention, diversity: bool):
        self.place, self.kind = place, attention_kind(module)
        self.zeros = self.zeros_of_mean = self.sinks = torch.tensor(0)
        self.divergences = dict.fromkeys(_exponents(module) if diversity else (), 0.0)

    def add(self, weights: Tensor, masked: Tensor, padding: Tensor) -> None:
        """Count a batch; the arguments are those of :func:`count_zeros`."""
        self.zeros = self.zeros + count_zeros(weights, masked, padding)
        mean = weights.mean(0, keepdim=True)
        self.zeros_of_mean = self.zeros_of_mean + count_zeros(mean, masked, padding)
        self.sinks = self.sinks + sum_of_shares(weights, masked, padding, self.place)
        for exponent in self.divergences:
            self.divergences[exponent] += sum_of_divergences(weights, masked, padding, exponent)

    def measures(self) -> dict[str, Any]:
        """Return the measures of the layer, see :meth:`AttentionStatistics.rates`.

        Raises:
            ValueError: weights were NaN.
        """
        heads = []
        for (zeros, pairs, nulls, queries, nans), (*shares, attending, total) in zip(
            self.zeros.tolist(), self.sinks.tolist(), strict=True
        ):
            if nans > 0:
                raise ValueError(
                    "attention weights are NaN: the model's parameters are NaN or infinite"
                )
            nonzeros = (pairs - zeros) / queries
            head = {"sparsity": zeros / pairs, "null": nulls / queries}
            head |= {"nonzeros": nonzeros, "sum": total / queries}
            means = [share / attending if attending else 0.0 for share in shares]
            heads.append({**head, **dict(zip(SINKS, means, strict=True))})
        result: dict[str, Any] = {"attention": self.kind}
        for name in ("sparsity", "null"):
            rates = [head[name] for head in heads]
            result[name] = fmean(rates)
            if len(heads) > 1:
                result[f"{name}_variance"] = variance(rates)
        queries = int(self.zeros[0, 3])
        result["layer_null"] = int(self.zeros_of_mean[0, 2]) / queries
        for name in ("nonzeros", "sum", *SINKS):
            result[name] = fmean(head[name] for head in heads)
        diversity = {exponent: float(x) / queries for exponent, x in self.divergences.items()}
        if diversity:
            result["diversity"] = next(iter(diversity.values()))
        if diversity and None not in diversity:
            result["diversity_by_exponent"] = {
                str(name): value for name, value in diversity.items()
            }
        return {**result, "heads": heads}


def attention_kind(module: Attention) -> str:
    """Return the name in ``ATTENTION_KINDS`` of what an attention module computes."""
    return getattr(module, "attention_kind", "softmax")  # fairseq's own modules lack the attribute


def head_count(module: Attention) -> int:
    """Return how many heads an attention module has."""
    return getattr(module, "num_heads", 1)  # an LSTM's module lacks the attribute


def count_zeros(weights: Tensor, masked: Tensor, padding: Tensor) -> Tensor:
    """Count the zero weights and the null queries behind the two rates.

    The arguments are those of :func:`sum_of_shares`.

    Returns:
        ``[heads, 5]`` of int64: weights that are 0, weights, queries whose weights are all 0,
        queries, weights that are NaN. Masked keys, padding, and queries that see no key at all
        are left out.
    """
    visible = (~(masked | padding[:, :, None])).expand(weights.shape[1:])
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


def attention_modules(model: nn.Module) -> dict[str, list[Attention]]:
    """Return the attention modules of a model: for each of ``PLACES``, one per layer, or none.

    Raises:
        ValueError: the model is neither a Transformer nor an LSTM with fairseq's attention.
    """
    decoder = getattr(model, "decoder", None)
    if isinstance(decoder, LSTMDecoder) and isinstance(
        decoder.attention, (AttentionLayer, type(None))
    ):
        cross = [] if decoder.attention is None else [decoder.attention]
        return {"encoder": [], "decoder": [], "cross": cross}
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
            f"{type(model).__name__} is no Transformer or LSTM of fairseq with an encoder and a "
            "decoder"
        )
    return modules


def find_attention(model: nn.Module) -> dict[str, list[Attention]]:
    """Return the result of :func:`attention_modules`, without modules for any other model."""
    try:
        return attention_modules(model)
    except ValueError:
        return {place: [] for place in PLACES}


def watch_attention(
    model: nn.Module, observe: Observer, places: Collection[str] = PLACES
) -> AbstractContextManager[None]:
    """Show the weights of every attention head to ``observe`` while the model runs.

    Use it for one forward pass over whole sentences, never with incremental decoding. The model's
    results stay the same, except that a Transformer returns no attention.

    Args:
        model: see :func:`attention_modules`.
        observe: called with the place, the number of the layer from 0, the weights
            ``[heads, batch, queries, keys]`` before dropout, and a boolean tensor, true for keys
            that a query may not see, which broadcasts with ``[batch, queries, keys]``. The keys
            have the order of the source, but an LSTM's encoder moves its padding to the end. An
            LSTM attends step by step: its weights are shown when the block ends.
        places: the places to observe, among ``PLACES``.
    """
    if isinstance(model.decoder, LSTMDecoder):
        return _watch_steps(attention_modules(model)["cross"] if "cross" in places else [], observe)
    return _watch_layers(model, observe, places)


@contextmanager
def _watch_steps(modules: list[AttentionLayer], observe: Observer) -> Iterator[None]:
    steps: list[Tensor] = []
    masked: list[Tensor] = []

    def keep(module, arguments, result):
        _, _, padding = arguments  # [keys, batch]
        steps.append(result[1])  # [keys, batch]
        masked[:] = [padding.t()[:, None]]

    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_hook(keep))
        yield
    if steps:
        weights = torch.stack(steps).permute(2, 0, 1)  # [batch, queries, keys]
        observe("cross", 0, weights[None], masked[0])


@contextmanager
def _watch_layers(model: nn.Module, observe: Observer, places: Collection[str]) -> Iterator[None]:
    def report_to(place, number):
        def hook(module, arguments, options, result):
            output, weights = result
            observe(place, number, weights, _masked_keys(options, weights))
            return output, None

        return hook

    with ExitStack() as hooks:
        for place, modules in attention_modules(model).items():
            for number, module in enumerate(modules if place in places else []):
                for hook in (
                    module.register_forward_pre_hook(_ask_for_weights, with_kwargs=True),
                    module.register_forward_hook(report_to(place, number), with_kwargs=True),
                ):
                    hooks.enter_context(hook)
        yield


def _ask_for_weights(module, arguments, options):
    # Without static_kv, fairseq's own module calls PyTorch's attention, which returns the mean over
    # the heads. Without incremental state, static_kv has no other effect.
    asked = {"need_weights": True, "need_head_weights": True, "static_kv": True}
    return arguments, {**options, **asked}


def _masked_keys(options: Mapping[str, Any], weights: Tensor) -> Tensor:
    """Return the mask in the arguments of an attention module, as in :func:`watch_attention`."""
    masked = weights.new_zeros((1, 1, 1), dtype=torch.bool)
    padding: Optional[Tensor] = options.get("key_padding_mask")  # [batch, keys]
    mask: Optional[Tensor] = options.get("attn_mask")  # [queries, keys]
    if padding is not None:
        masked = masked | padding.bool()[:, None, :]
    if mask is not None:
        masked = masked | (mask <= MASKED if mask.is_floating_point() else mask.bool())
    return masked


def _exponents(module: Attention) -> tuple[Optional[float], ...]:
    """Return the exponents with which the diversity of a module's heads is measured.

    Only None if the weights sum to 1, only 1 if they can be below 0; empty for a single head.
    """
    if head_count(module) == 1:
        return ()
    kind = ATTENTION_KINDS[attention_kind(module)]
    if kind.sums_to_one:
        return (None,)
    return EXPONENTS[:1] if kind.weights.signed else EXPONENTS


def _mean_of(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean of all numbers; the layers of a place have the same kind of attention."""
    return {
        name: _mean_of([layer[name] for layer in layers])
        if isinstance(value, dict)
        else fmean(layer[name] for layer in layers)
        for name, value in layers[0].items()
        if isinstance(value, (float, dict))
    }
