"""Cases for tests of attention: its kinds, modules in which every parameter matters, masks."""

import torch

import references
from fairseq_sparse.modules.attention_kinds import ATTENTION_KINDS
from fairseq_sparse.modules.sparse_attention import SparseMultiheadAttention

INF = float("inf")
FP64 = torch.float64
WIDTH, HEADS = 8, 2

# Options of SparseMultiheadAttention: each kind, entmax with a learned alpha per head, and scaled
# queries.
CASES = {kind: {"attention": kind} for kind in ATTENTION_KINDS}
CASES["entmax"]["alpha"] = 1.3
CASES["entmax_learned"] = {"attention": "entmax", "alpha_learnable": True}
CASES["entmax15_scaled"] = {"attention": "entmax15", "scale_queries": True}

# Kinds whose weights are the positive part of the scores, whatever norm follows.
RECTIFIED = ("relu", "relu_rmsnorm", "rela_i", "rela_g", "rela_g_layernorm")
# Kinds that give weight 0 to scores of 0 or less.
NULLABLE = (*RECTIFIED, "relu_length", "relu_l1", "softpick")
DISTRIBUTIONS = tuple(x for x in CASES if ATTENTION_KINDS[CASES[x]["attention"]].sums_to_one)
# Cases whose weights add up to no more than the number of keys.
BOUNDED = (*DISTRIBUTIONS, "relu_l1", "softpick", "sigmoid")
# Kinds with a norm or a gate after the heads.
NORMALISED = tuple(name for name, kind in ATTENTION_KINDS.items() if kind.norm is not None)
# One case for each function from scores to weights.
WEIGHTS = tuple(
    case
    for case in CASES
    if case not in (*RECTIFIED[1:], "entmax15_scaled") and "gated" not in case
)


def weights_function(case):
    """Return the function from scores to weights; that of entmax_learned also takes alpha."""
    options = CASES[case]
    kind = ATTENTION_KINDS[options["attention"]]
    return kind.weights.with_alpha(options["alpha"]) if "alpha" in options else kind.weights


def learned_alpha(case, heads=HEADS):
    """Return that function's arguments after the scores: alpha ``[heads, 1, 1]``, or none."""
    if case != "entmax_learned":
        return []
    return [torch.linspace(1.2, 1.9, heads, dtype=FP64)[:, None, None].requires_grad_()]


def sums_to_one(case):
    return ATTENTION_KINDS[CASES[case]["attention"]].sums_to_one


def module(case, *, dtype=FP64, width=WIDTH, heads=HEADS, **options):
    """Return an attention module in evaluation mode.

    No parameter has a value that would hide an error in its use, such as a bias of 0.
    """
    result = SparseMultiheadAttention(width, heads, **CASES[case], **options)
    with torch.no_grad():
        for name, parameter in result.named_parameters():
            if name.endswith("bias") or name in ("norm.gate", "alpha_logit"):
                parameter.normal_()
            elif name.startswith("query_scale."):
                parameter.normal_(std=0.3)
            elif name == "norm.weight":
                parameter.uniform_(0.5, 2.0)
    return result.to(dtype).eval()


def self_attention(case, **options):
    return module(case, self_attention=True, **options)


def alpha_of(attention):
    """Return alpha as the naive reference takes it: a number, or one for each head."""
    return attention.alpha().tolist() if attention.learns_alpha else attention.fixed_alpha


def naive(attention, query, key, value, bias):
    """Return output and weights of the naive reference with the parameters of a module."""
    return references.multihead_attention(
        dict(attention.named_parameters()),
        *(query, key, value),
        attention.attention_kind,
        attention.num_heads,
        bias,
        alpha_of(attention),
    )


def sequence(length=5, batch=3, width=WIDTH, dtype=FP64, scale=1.5):
    """Draw ``[length, batch, width]``, scaled so that some weights are zero and some are not."""
    return (scale * torch.randn(length, batch, width, dtype=FP64)).to(dtype)


def causal(length, keys=None, hides=-INF):
    return torch.full((length, keys or length), hides).triu(1)


def padding(*counts, length=5, left=False):
    """Return ``[batch, length]``, true for ``counts`` positions at one end of each sentence."""
    position = torch.arange(length)
    if not left:
        position = position.flip(0)
    return position < torch.tensor(counts)[:, None]


def as_bias(mask, batch=3, heads=HEADS):
    """Return a mask, or padding ``[batch, 1, 1, keys]``, as the naive reference takes it."""
    if mask.dtype in (torch.bool, torch.uint8):
        mask = torch.zeros(mask.shape).masked_fill(mask.bool(), -INF)
    if mask.dim() == 3:
        mask = mask.unflatten(0, (batch, heads))
    return mask.double()


def masks(length=5, keys=5, batch=3, heads=HEADS):
    """Return name -> (arguments of ``forward``, what they add to the scores)."""
    pad = padding(0, 2, 1, length=keys)
    left = padding(1, 0, 2, length=keys, left=True)
    everything = padding(0, keys, 1, length=keys)
    future = causal(length, keys)
    masked = torch.rand(length, keys) < 0.4
    masked_by_head = torch.rand(batch * heads, length, keys) < 0.4
    slopes = -0.3 * torch.rand(length, keys, dtype=FP64)
    slopes_by_head = torch.randn(batch * heads, length, keys, dtype=FP64)
    near_by_head = slopes_by_head.masked_fill(masked_by_head, -INF)
    seen = torch.zeros(batch, heads, length, keys, dtype=FP64)

    def hides(mask):
        return seen + as_bias(mask, batch, heads)

    def mask_keys(mask):
        return hides(mask[:, None, None])

    return {
        "none": ({}, seen),
        "padding": ({"key_padding_mask": pad}, mask_keys(pad)),
        "padding on the left": ({"key_padding_mask": left}, mask_keys(left)),
        "uint8 padding": ({"key_padding_mask": pad.to(torch.uint8)}, mask_keys(pad)),
        "all keys padded": ({"key_padding_mask": everything}, mask_keys(everything)),
        "causal": ({"attn_mask": future}, hides(future)),
        "causal with padding": (
            {"attn_mask": future, "key_padding_mask": pad},
            hides(future) + mask_keys(pad),
        ),
        "causal with padding on the left": (
            {"attn_mask": future, "key_padding_mask": left},
            hides(future) + mask_keys(left),
        ),
        "boolean": ({"attn_mask": masked}, hides(masked)),
        "uint8": ({"attn_mask": masked.to(torch.uint8)}, hides(masked)),
        "-1e4": ({"attn_mask": causal(length, keys, -1e4)}, hides(future)),
        "-1e8": ({"attn_mask": causal(length, keys, -1e8)}, hides(future)),
        "added": ({"attn_mask": slopes}, hides(slopes)),
        "added in fp32": ({"attn_mask": slopes.float()}, hides(slopes.float())),
        "boolean by head": ({"attn_mask": masked_by_head}, hides(masked_by_head)),
        "added by head": ({"attn_mask": near_by_head}, hides(near_by_head)),
    }


MASKS = tuple(masks())


def assert_finite_gradients(*tensors):
    for tensor in tensors:
        assert tensor.grad is not None and torch.isfinite(tensor.grad).all()


def assert_within_rounding(actual, expected, dtype, roundings=8, moved=None):
    """Check that the relative error over all entries is at most ``roundings`` in ``dtype``.

    Single entries may be worse: where a context is nearly 0, a norm layer enlarges its error. If
    that can be seen in all entries together, pass ``moved``: the result for inputs that are moved
    by one rounding; then the error may be four times that change larger.
    """
    allowed = roundings * torch.finfo(dtype).eps * expected.float().norm()
    if moved is not None:
        allowed += 4 * (moved.float() - expected.float()).norm()
    error = (actual.float() - expected.float()).norm()
    assert error <= allowed, f"{error / allowed:.3g} times the error that is fair"
