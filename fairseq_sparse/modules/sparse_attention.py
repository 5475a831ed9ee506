"""Multi-head attention whose weights can be exactly zero."""

from typing import Optional

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
from fairseq_sparse.modules.query_scale import QueryScale, count_visible
from fairseq_sparse.ops.attention import attend
from fairseq_sparse.ops.attention_weights import AttentionWeights
from fairseq_sparse.ops.checks import check_alpha
from fairseq_sparse.ops.precision import at_least_fp32

# A learned alpha lies above this, because near 1 the value of 1 / (alpha - 1) is too inexact.
_LEAST_ALPHA = 1.01

IncrementalState = dict[str, dict[str, Optional[Tensor]]]


class SparseMultiheadAttention(MultiheadAttention):
    """fairseq's multi-head attention with any kind of weights.

    It replaces ``MultiheadAttention`` in a layer, with the same arguments of ``forward``, results,
    parameters and incremental state. Differences: the weights of each head can be requested in
    training, too; a query whose keys are all masked gets weights of 0 instead of NaN; and some
    kinds add parameters: a norm between the heads and the output projection (``norm.weight``,
    ``norm.gate``), a learned alpha (``alpha_logit``, one per head), the scaling of queries
    (``query_scale``).

    Args:
        attention: the kind of weights, a key of ``ATTENTION_KINDS``.
        alpha: the alpha of ``entmax``, > 1; with ``alpha_learnable`` its initial value, < 2. Other
            kinds ignore it.
        alpha_learnable: learn the alpha of ``entmax``, one for each head, in [1.01, 2] (Correia,
            Niculae, Martins 2019, "Adaptively Sparse Transformers").
        scale_queries: multiply each query by its :class:`QueryScale`; for alpha-entmax only.
        is_causal: whether every mask ``[length, keys]`` passed to ``forward`` is the causal one, as
            in a decoder's self-attention. GPU kernels then need not read it.
        others: the arguments of ``MultiheadAttention``.

    Raises:
        ValueError: an option is out of range or does not fit the kind.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *args,
        attention: str = "softmax",
        alpha: float = 1.5,
        alpha_learnable: bool = False,
        scale_queries: bool = False,
        is_causal: bool = False,
        **kwargs,
    ):
        if embed_dim % num_heads != 0:
            raise ValueError(f"{num_heads} attention heads do not divide a width of {embed_dim}")
        if attention not in ATTENTION_KINDS:
            raise ValueError(
                f"--attention {attention} is unknown; choose from {', '.join(ATTENTION_KINDS)}"
            )
        super().__init__(embed_dim, num_heads, *args, **kwargs)
        if self.use_xformers or self.bias_k is not None or self.add_zero_attn:
            raise ValueError(
                f"--attention {attention} cannot be combined with xFormers, with biases of keys "
                "and values, or with an added zero attention"
            )
        self.is_causal = is_causal
        self.attention_kind = attention
        self.kind = ATTENTION_KINDS[attention]
        self.norm = self.kind.norm and self.kind.norm(embed_dim, self.head_dim)
        self.fixed_alpha = None if alpha_learnable else alpha
        if self.kind.takes_alpha:
            check_attention_options(alpha, alpha_learnable)
        if alpha_learnable:
            if not self.kind.takes_alpha:
                raise ValueError(f"--attention {attention} has no alpha to learn; entmax has")
            share = (alpha - _LEAST_ALPHA) / (2 - _LEAST_ALPHA)
            self.alpha_logit = nn.Parameter(torch.full((num_heads,), share).logit())
        if scale_queries and not self.kind.is_entmax:
            raise ValueError(
                f"--attention-scale-queries is for alpha-entmax, not for --attention {attention}"
            )
        self.query_scale = QueryScale(embed_dim, num_heads) if scale_queries else None

    @property
    def learns_alpha(self) -> bool:
        return hasattr(self, "alpha_logit")

    def alpha(self) -> Tensor:
        """Return the learned alpha of each head, ``[heads]``, fp32 or better."""
        share = at_least_fp32(self.alpha_logit).sigmoid()
        return _LEAST_ALPHA + (2 - _LEAST_ALPHA) * share

    def forward(
        self,
        query: Tensor,
        key: Optional[Tensor],
        value: Optional[Tensor],
        key_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[IncrementalState] = None,
        need_weights: bool = True,
        static_kv: bool = False,
        attn_mask: Optional[Tensor] = None,
        before_softmax: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Optional[Tensor]]:
        """Attend from each query to the keys.

        Args:
            query: ``[length, batch, embed_dim]``.
            key: ``[keys, batch, kdim]``; ignored in self-attention, and with ``static_kv`` if the
                incremental state has it.
            value: ``[keys, batch, vdim]``; ignored like ``key``, and in cross-attention, where it
                is the key.
            key_padding_mask: ``[batch, keys]``, true for keys that no query may attend to.
            incremental_state: holds the keys and values of the previous steps.
            need_weights: return the weights, the mean over the heads.
            static_kv: the keys are those of the first step (cross-attention).
            attn_mask: ``[length, keys]``, or ``[batch * heads, length, keys]``: boolean, true where
                a key is masked, or added to the scores, where -1e4 or less masks a key.
            need_head_weights: return the weights of each head.

        Returns:
            ``[length, batch, embed_dim]``, and the weights, ``[batch, length, keys]`` or per head
            ``[heads, batch, length, keys]``, in fp32 or better, or None.
        """
        if before_softmax:
            raise NotImplementedError(
                f"before_softmax is not supported for --attention {self.attention_kind}"
            )
        length, batch, _ = query.shape
        keys, values, masked = self._keys_and_values(
            query, key, value, key_padding_mask, incremental_state, static_kv
        )
        bias = self._bias(attn_mask, batch)
        masked = None if masked is None else masked.bool()
        queries = self._split_heads(self.q_proj(query))
        if self.query_scale is not None:
            scale = self.query_scale(query, count_visible(keys, masked, bias))
            queries = queries * scale.to(queries.dtype)
        context, weights = attend(
            queries,
            keys,
            values,
            self._weights(),
            alpha=self.alpha()[:, None, None] if self.learns_alpha else None,
            masked=masked,
            bias=bias,
            dropout=self._dropout(),
            causal=self.is_causal and attn_mask is not None and attn_mask.dim() == 2,
            need_weights=need_weights or need_head_weights,
            scale=self.scaling,
        )
        # [batch, heads, length, head_dim] to [length, batch, embed_dim]
        context = context.permute(2, 0, 1, 3).reshape(length, batch, self.embed_dim)
        output = self._project(context, query.dtype)
        if not (need_weights or need_head_weights):
            return output, None
        return output, weights.transpose(0, 1) if need_head_weights else weights.mean(1)

    def _project(self, context: Tensor, dtype: torch.dtype) -> Tensor:
        """Apply the norm, if there is one, and the output projection to the concatenated heads."""
        normed = context if self.norm is None else self.norm(context)
        return self.out_proj(normed.to(dtype))

    def _weights(self) -> AttentionWeights:
        if not self.kind.takes_alpha or self.learns_alpha:
            return self.kind.weights
        return self.kind.weights.with_alpha(self.fixed_alpha)

    def _dropout(self) -> float:
        dropout = self.dropout_module
        return dropout.p if self.training or dropout.apply_during_inference else 0.0

    def _split_heads(self, x: Tensor) -> Tensor:
        """View ``[length, batch, embed_dim]`` as ``[batch, heads, length, head_dim]``."""
        return x.view(*x.shape[:2], self.num_heads, self.head_dim).permute(1, 2, 0, 3)

    def _keys_and_values(
        self, query, key, value, key_padding_mask, incremental_state, static_kv
    ) -> tuple[Tensor, Tensor, Optional[Tensor]]:
        """Return keys, values ``[batch, heads, keys, head_dim]`` and padding up to this step."""
        state = {} if incremental_state is None else self._get_input_buffer(incremental_state)
        if static_kv and "prev_key" in state:
            padding = state.get("prev_key_padding_mask")
            padding = key_padding_mask if padding is None else padding
            return state["prev_key"], state["prev_value"], padding
        if self.self_attention:
            key = value = query
        elif self.encoder_decoder_attention:
            value = key
        keys, values = self._split_heads(self.k_proj(key)), self._split_heads(self.v_proj(value))
        if "prev_key" in state:
            keys = torch.cat([state["prev_key"], keys], dim=2)
            values = torch.cat([state["prev_value"], values], dim=2)
            key_padding_mask = self._append_prev_key_padding_mask(
                key_padding_mask=key_padding_mask,
                prev_key_padding_mask=state.get("prev_key_padding_mask"),
                batch_size=keys.size(0),
                src_len=keys.size(2),
                static_kv=static_kv,
            )
        if incremental_state is not None:
            if static_kv:  # read at each step, which is fastest with contiguous heads
                keys, values = keys.contiguous(), values.contiguous()
            state.update(prev_key=keys, prev_value=values, prev_key_padding_mask=key_padding_mask)
            self._set_input_buffer(incremental_state, state)
        return keys, values, key_padding_mask

    def _bias(self, attn_mask: Optional[Tensor], batch: int) -> Optional[Tensor]:
        """Return the mask as a bias that is added to the scores."""
        if attn_mask is None:
            return None
        if not attn_mask.is_floating_point():
            zeros = torch.zeros_like(attn_mask, dtype=torch.float32)
            attn_mask = zeros.masked_fill(attn_mask.bool(), -float("inf"))
        return attn_mask if attn_mask.dim() == 2 else attn_mask.unflatten(0, (batch, -1))

    def set_beam_size(self, beam_size: int) -> None:
        """Do nothing; the stock module would let a sentence's hypotheses share static keys."""

    def __prepare_scriptable__(self):
        raise NotImplementedError(
            f"TorchScript is not supported for --attention {self.attention_kind}: only a model "
            "whose attention is softmax in every place can be scripted"
        )

    def extra_repr(self) -> str:
        return f"attention={self.attention_kind}"


def has_sparse_attention(model: nn.Module) -> bool:
    """Return whether *model* has an attention of this package, whose weights can be zero."""
    return any(isinstance(module, SparseMultiheadAttention) for module in model.modules())


def check_attention_options(alpha: float, alpha_learnable: bool) -> None:
    """Refuse an alpha of the attention ``entmax`` that is out of range.

    Raises:
        ValueError: naming the flag.
    """
    try:
        check_alpha(alpha, torch.float32)
    except ValueError as error:
        raise ValueError(f"--attention-alpha: {error}") from None
    if alpha_learnable and not _LEAST_ALPHA < alpha < 2:
        raise ValueError(
            f"--attention-alpha {alpha}: with --attention-alpha-learnable it must lie between "
            f"{_LEAST_ALPHA} and 2, the limits of a learned alpha"
        )
