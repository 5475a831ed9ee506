"""Naive versions of the ops: each written from its definition, once, plain and slow.

They work over the last dimension, in the dtype that they are given. In fp64 they are the reference
for the ops; their own error in a lower dtype says how much error is fair.
"""

import itertools
import math

import torch
import torch.nn.functional as F

from fairseq_sparse.ops.tau import mean_field_tau

INF = float("inf")


def entmax(z, alpha):
    """alpha-entmax; ``alpha`` is a float or a tensor with size 1 in the last dimension."""
    return _entmax_and_threshold(z, alpha)[0]


def entmax_threshold(z, alpha):
    """tau of ``p = [(alpha - 1) z - tau]_+ ** (1 / (alpha - 1))`` with ``sum(p) = 1``."""
    return _entmax_and_threshold(z, alpha)[1].squeeze(-1)


def _entmax_and_threshold(z, alpha):
    """Bisect until no number of the dtype is left between the two ends."""
    maximum = z.amax(-1, keepdim=True)
    # A row without a finite logit keeps p = 0.
    maximum = maximum.masked_fill(maximum == -INF, 0)
    x = (alpha - 1) * (z - maximum)
    low = torch.full_like(maximum, -1)
    high = torch.zeros_like(maximum)
    middle = (low + high) / 2
    while ((low < middle) & (middle < high)).any():
        too_much = _power(x - middle, 1 / (alpha - 1)).sum(-1, keepdim=True) >= 1
        low, high = torch.where(too_much, middle, low), torch.where(too_much, high, middle)
        middle = (low + high) / 2
    p = _power(x - low, 1 / (alpha - 1))
    total = p.sum(-1, keepdim=True)
    return p / total.masked_fill(total == 0, 1), low + (alpha - 1) * maximum


def _power(x, exponent):
    return torch.where(x > 0, x.clamp(min=0) ** exponent, torch.zeros_like(x))


def entmax_gradient(p, grad, alpha):
    """``grad`` times the Jacobian diag(s) - s s^T / sum(s), s = p^(2 - alpha) on the support."""
    s = _power(p, 2 - alpha)
    jacobian = torch.diag_embed(s) - s.unsqueeze(-1) * s.unsqueeze(-2) / s.sum(-1)[..., None, None]
    return (grad.unsqueeze(-2) @ jacobian).squeeze(-2)


def alpha_relu(z, tau, alpha=1.5):
    return _power((alpha - 1) * z - tau, 1 / (alpha - 1))


def smoothed_target(z, target, label_smoothing=0.0):
    """q = (1 - eps) e_y + eps / V, in the shape and dtype of ``z``."""
    one_hot = F.one_hot(target, z.size(-1)).to(z.dtype)
    return (1 - label_smoothing) * one_hot + label_smoothing / z.size(-1)


def entmax_loss(z, target, alpha=1.5, label_smoothing=0.0):
    """<p - q, z> + H_alpha(p) - H_alpha(q), one a row."""
    p = entmax(z, alpha)
    q = smoothed_target(z, target, label_smoothing)
    return _product(p - q, z) + tsallis_entropy(p, alpha) - tsallis_entropy(q, alpha)


def entmax_loss_gradient(z, target, alpha=1.5, label_smoothing=0.0):
    return entmax(z, alpha) - smoothed_target(z, target, label_smoothing)


def tsallis_entropy(p, alpha):
    return (p - p**alpha).sum(-1) / (alpha * (alpha - 1))


def alpha_relu_loss(z, target, tau, alpha=1.5, label_smoothing=0.0):
    """<p - q, z - tau / (alpha - 1)> + H(p) - H(q)."""

    def entropy(p):
        # Not Tsallis' sum(p - p^alpha): the sum of p need not be 1.
        return (1 - (p**alpha).sum(-1)) / (alpha * (alpha - 1))

    p = alpha_relu(z, tau, alpha)
    q = smoothed_target(z, target, label_smoothing)
    return _product(p - q, z - tau / (alpha - 1)) + entropy(p) - entropy(q)


def alpha_relu_loss_gradient(z, target, tau, alpha=1.5, label_smoothing=0.0):
    return alpha_relu(z, tau, alpha) - smoothed_target(z, target, label_smoothing)


def _product(weights, z):
    # 0 * -inf = 0: a class with logit -inf costs nothing where p and q are both 0.
    return torch.where(weights == 0, torch.zeros_like(z), weights * z).sum(-1)


def error_of_naive(naive, *inputs, dtype=torch.float32):
    """Return the largest error that ``naive(*inputs)`` makes in ``dtype``.

    Below fp64, that is its difference from fp64 for the same (rounded) inputs. For fp64, which has
    no better reference, it is the larger of two estimates: the error of fp32, scaled down, and the
    change of the result when each input moves by one rounding.
    """
    rounded = _cast(inputs, dtype)
    exact = naive(*_cast(rounded, torch.float64))
    finite = torch.isfinite(exact)
    if not finite.any():
        return 0.0
    if dtype != torch.float64:
        return float((naive(*rounded).double() - exact)[finite].abs().max())
    proportion = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    errors = [proportion * error_of_naive(naive, *inputs)]
    for _ in range(5):
        moved = naive(*[moved_by_one_rounding(x) for x in rounded])
        errors.append(float((moved - exact)[finite].abs().max()))
    return max(errors)


def assert_close_to_naive(actual, naive, *inputs, dtype=None, slack=2.0, atol=0.0):
    """Check an op's result for ``inputs`` against ``naive`` in fp64.

    The allowed error is ``slack`` times that of ``naive`` in ``dtype`` (by default the one in which
    the ops compute: fp32, or fp64 for fp64 inputs), plus the result's rounding and ``atol``.
    """
    if dtype is None:
        fp64 = any(_is_floating(x) and x.dtype == torch.float64 for x in inputs)
        dtype = torch.float64 if fp64 else torch.float32
    exact = naive(*_cast(inputs, torch.float64))
    assert actual.shape == exact.shape
    finite = torch.isfinite(exact)
    assert torch.equal(actual[~finite].double(), exact[~finite])
    if finite.any():
        allowed = atol + slack * error_of_naive(naive, *inputs, dtype=dtype)
        allowed = allowed + torch.finfo(actual.dtype).eps * exact[finite].abs()
        # The smallest normal number of fp16 can be larger than the rest of the sum.
        allowed = allowed + torch.finfo(actual.dtype).smallest_normal
        worst = float(((actual.double() - exact)[finite].abs() / allowed).max())
        assert worst <= 1, f"{worst:.3g} times the error that is fair"


def assert_as_accurate(actual, other, exact, slack=8.0):
    """Check that ``actual`` is about as near to ``exact``, in fp64, as ``other`` is.

    ``other`` is another version's result in the same dtype. The allowed error is ``slack`` times
    its largest one plus a rounding of the largest entry.
    """
    assert actual.shape == exact.shape and actual.dtype == other.dtype
    rounding = torch.finfo(actual.dtype).eps * exact.abs().max()
    fair = (other - exact).abs().max() + rounding + torch.finfo(actual.dtype).smallest_normal
    worst = float((actual - exact).abs().max() / fair)
    assert worst <= slack, f"{worst:.3g} times the error that is fair"


def _is_floating(x):
    return torch.is_tensor(x) and x.is_floating_point()


def _cast(inputs, dtype):
    return [x.to(dtype) if _is_floating(x) else x for x in inputs]


def moved_by_one_rounding(x):
    if not _is_floating(x):
        return x
    sign = torch.randint(0, 2, x.shape).to(x.dtype) * 2 - 1
    return x * (1 + torch.finfo(x.dtype).eps * sign)


def rms_norm(z, gain, gate=None, eps=1e-8):
    """Return g * z / RMS(z), times sigmoid(w * z) if there is a gate w."""
    normed = gain * z / (z.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    return normed if gate is None else torch.sigmoid(gate * z) * normed


def gated_layer_norm(z, gain, bias, gate, eps=1e-5):
    centred = z - z.mean(-1, keepdim=True)
    variance = centred.pow(2).mean(-1, keepdim=True)
    return torch.sigmoid(gate * z) * (gain * centred / (variance + eps).sqrt() + bias)


def attention_weights(scores, kind, alpha=1.5):
    """Return the weights of a query for its visible keys; ``alpha`` is for the kind entmax."""
    if kind.startswith("softmax"):
        exponential = (scores - scores.amax(-1, keepdim=True)).exp()
        return exponential / exponential.sum(-1, keepdim=True)
    if kind in ("sparsemax", "entmax15", "entmax"):
        return entmax(scores, {"sparsemax": 2.0, "entmax15": 1.5}.get(kind, alpha))
    if kind == "rela_g_gelu":
        return scores * (1 + torch.erf(scores / 2**0.5)) / 2
    if kind == "rela_g_leaky_relu":
        return torch.where(scores > 0, scores, 0.2 * scores)
    if kind == "sigmoid":
        return 1 / (1 + scores.size(-1) * torch.exp(-scores))
    if kind == "softpick":
        largest = scores.amax(-1, keepdim=True).clamp(min=0)
        total = scores.expm1().abs().sum(-1, keepdim=True) + 1e-8 * largest.exp()
        return scores.expm1().clamp(min=0) / total
    if kind.startswith("alpha_relu"):
        tau = mean_field_tau(0.5, scores.size(-1))
        return (scores / 2 - tau).clamp(min=0) ** 2
    if kind == "relu_centred":
        return (scores - scores.mean(-1, keepdim=True)).clamp(min=0)
    if kind == "relu_l1":
        positive = scores.clamp(min=0)
        return positive / (positive.sum(-1, keepdim=True) + 1e-6)
    if kind == "relu_length":
        return torch.where(scores > 0, scores, torch.zeros_like(scores)) / scores.size(-1)
    assert kind.startswith("rel")
    return torch.where(scores > 0, scores, torch.zeros_like(scores))


def attention(query, key, value, kind, bias, alpha=1.5):
    """Return weighted sums ``[batch, heads, queries, head_dim]`` and weights.

    They are computed for one query of one head at a time. Queries are scaled already. The bias
    ``[batch, heads, queries, keys]`` is -inf where a key is masked; ``alpha`` is a float, or one
    for each head.
    """
    context, weights = torch.zeros_like(query), torch.zeros_like(bias, dtype=query.dtype)
    for place in itertools.product(*map(range, query.shape[:3])):
        sentence, head, _ = place
        seen = bias[place] > -INF
        if not seen.any():
            continue
        keys, values = key[sentence, head, seen], value[sentence, head, seen]
        scores = torch.stack([(query[place] * k).sum() for k in keys]) + bias[place][seen]
        chosen = attention_weights(scores, kind, alpha if isinstance(alpha, float) else alpha[head])
        weights[place][seen] = chosen
        context[place] = sum(weight * v for weight, v in zip(chosen, values, strict=True))
    return context, weights


def attention_norm(z, kind, parameters):
    """Apply the norm of a kind of attention to the concatenated heads."""
    if kind == "softmax_gated":
        return torch.sigmoid(parameters["norm.gate"] * z) * z
    if kind in ("relu_rmsnorm", "rela_i"):
        return rms_norm(z, parameters["norm.weight"])
    if kind == "rela_g_layernorm":
        names = ("norm.weight", "norm.bias", "norm.gate")
        return gated_layer_norm(z, *(parameters[name] for name in names))
    if kind.startswith("rela_g") or kind.endswith("rmsnorm_gated") or kind == "relu_centred":
        return rms_norm(z, parameters["norm.weight"], parameters["norm.gate"])
    return z


def multihead_attention(parameters, query, key, value, kind, heads, bias, alpha=1.5):
    """Return output ``[length, batch, width]`` and weights ``[batch, heads, length, keys]``.

    ``parameters`` are those of a module, by name; the bias is that of :func:`attention`.
    """

    def project(x, name):
        return F.linear(x, parameters[f"{name}.weight"], parameters[f"{name}.bias"])

    def split(x):  # [length, batch, width] to [batch, heads, length, head_dim]
        return x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)

    q, k, v = (
        split(project(x, name))
        for x, name in ((query, "q_proj"), (key, "k_proj"), (value, "v_proj"))
    )
    if "query_scale.beta.weight" in parameters:
        q = q * query_scale(parameters, query, (bias > -INF).sum(-1).clamp(min=1))
    context, weights = attention(q / q.size(-1) ** 0.5, k, v, kind, bias, alpha)
    z = context.permute(2, 0, 1, 3).flatten(2)
    return project(attention_norm(z, kind, parameters), "out_proj"), weights


def query_scale(parameters, x, keys):
    """Return ``1 + beta log(n + 1)^gamma``, ``[batch, heads, queries, 1]``; n is ``keys``."""

    def linear(name):
        weight, bias = (parameters[f"query_scale.{name}.{each}"] for each in ("weight", "bias"))
        return F.linear(x, weight, bias).permute(1, 2, 0)

    beta, gamma = torch.log(1 + linear("beta").exp()), 2 * torch.tanh(linear("gamma"))
    return (1 + beta * torch.log(keys.to(x.dtype) + 1) ** gamma).unsqueeze(-1)


def merge_subwords(weights, source, target):
    """Return lists ``[target words][source words]`` of ``weights[target piece][source piece]``.

    ``source`` and ``target`` give the number of each piece's word, from 0 and without gaps.
    """
    merged = []
    for target_word in range(max(target, default=-1) + 1):
        rows = [row for row, word in zip(weights, target, strict=True) if word == target_word]
        merged.append([])
        for source_word in range(max(source, default=-1) + 1):
            total = 0
            for row in rows:
                for weight, word in zip(row, source, strict=True):
                    if word == source_word:
                        total += weight
            merged[-1].append(total / len(rows))
    return merged


def word_links(weights):
    """Return (source, target) links from ``weights[target word][source word]``.

    Each target word has a link to the first of its largest weights above 0.
    """
    links = set()
    for target, row in enumerate(weights):
        best = None
        for source, weight in enumerate(row):
            if weight > 0 and (best is None or weight > row[best]):
                best = source
        if best is not None:
            links.add((best, target))
    return links


def alignment_error_rate(sure, possible, proposed):
    """Return precision, recall and AER of lists of links, as Och and Ney define them.

    Each sentence has one list; ``possible`` need not include the sure links. Precision and recall
    are None if they would be 0 / 0.
    """
    proposed_links = sure_links = found_sure = found_possible = 0
    for sure_here, possible_here, proposed_here in zip(sure, possible, proposed, strict=True):
        sure_links += len(sure_here)
        for link in proposed_here:
            proposed_links += 1
            found_sure += link in sure_here
            found_possible += link in sure_here or link in possible_here
    precision = found_possible / proposed_links if proposed_links else None
    recall = found_sure / sure_links if sure_links else None
    return precision, recall, 1 - (found_sure + found_possible) / (proposed_links + sure_links)


def distribution_with_dummy(weights, temperature):
    """Return probabilities from the weights of a query for its visible keys; the last is a dummy's.

    The softmax is taken of the weights to the power of the temperature.
    """
    if all(weight == 0 for weight in weights):
        return [0.0] * len(weights) + [1.0]
    powers = [weight**temperature for weight in weights]
    exponentials = [math.exp(power - max(powers)) for power in powers]
    return [x / sum(exponentials) for x in exponentials] + [0.0]


def jensen_shannon(heads):
    """Return the generalised Jensen-Shannon divergence, in nats, of one distribution per head.

    It is the mean over the heads of the Kullback-Leibler divergence from the mean head.
    """
    total = 0
    for head in heads:
        for key, p in enumerate(head):
            if p > 0:
                total += p * math.log(p * len(heads) / sum(other[key] for other in heads))
    return total / len(heads)


def average_precision(labels):
    """Return the mean, over the bad pairs (true) of a ranking, of the precision at their rank."""
    precisions = []
    for rank, label in enumerate(labels, start=1):
        if label:
            precisions.append(sum(labels[:rank]) / rank)
    return sum(precisions) / len(precisions)
