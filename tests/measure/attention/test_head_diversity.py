"""Diversity of heads against its definition, query by query in plain loops."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import references
from attention_cases import WEIGHTS, learned_alpha, sums_to_one, weights_function
from fairseq_sparse.measure.attention.head_diversity import (
    EXPONENTS,
    as_distributions,
    jensen_shannon,
    sum_of_divergences,
)

HEADS, BATCH, LENGTH = 3, 4, 6
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)[None]
# Padding on the left, as fairseq pads sources; the last sentence is padding only.
PADDED = torch.arange(LENGTH) < torch.tensor([0, 2, 5, 6])[:, None]
MASKS = {"none": torch.zeros(1, 1, 1, dtype=torch.bool), "causal": CAUSAL, "keys": PADDED[:, None]}
MASKS["both"] = CAUSAL | MASKS["keys"]
NOTHING = torch.zeros(BATCH, LENGTH, dtype=torch.bool)


def scores_of(mask, dtype=torch.float64, seed=0):
    """Return scores whose rows have one, several or no non-zero weights after a ReLU."""
    generator = torch.Generator().manual_seed(seed)
    shape = (BATCH, HEADS, LENGTH, LENGTH)
    scores = torch.randn(shape, generator=generator, dtype=dtype)
    scores -= torch.randint(0, 2, (*shape[:-1], 1), generator=generator)
    return scores.masked_fill(mask[:, None], -math.inf)


def weights_of(case, mask):
    """Return the weights of a kind of attention, ``[heads, batch, queries, keys]``."""
    weights = weights_function(case)(scores_of(mask), *learned_alpha(case, HEADS))
    return weights.detach().transpose(0, 1)


def exponents_of(case):
    """Return the exponents for a kind of attention; negative weights allow only 1."""
    if sums_to_one(case):
        return (None,)
    return (1.0,) if weights_of(case, MASKS["none"]).min() < 0 else EXPONENTS


def divergence_by_loops(weights, masked, padding, exponent):
    total, masked = 0.0, masked.expand(weights.shape[1:])
    for sentence, query in itertools.product(range(BATCH), range(LENGTH)):
        seen = ~masked[sentence, query]
        if padding[sentence, query] or not seen.any():
            continue
        rows = [head[sentence, query][seen].tolist() for head in weights]
        if exponent is not None:
            rows = [references.distribution_with_dummy(row, exponent) for row in rows]
        total += references.jensen_shannon(rows)
    return total


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("case", WEIGHTS)
def test_divergences_are_those_of_the_definition(case, mask):
    weights, masked = weights_of(case, MASKS[mask]), MASKS[mask]
    padding = PADDED if mask in ("keys", "both") else NOTHING
    weights = weights.masked_fill(masked, math.nan)  # fairseq's own, if a query sees no key
    for exponent in exponents_of(case):
        found = sum_of_divergences(weights, masked, padding, exponent)
        assert found.dtype == torch.float64
        expected = divergence_by_loops(weights, masked, padding, exponent)
        assert float(found) == pytest.approx(expected, rel=1e-9)
        in_fp32 = sum_of_divergences(weights.float(), masked, padding, exponent)
        assert float(in_fp32) == pytest.approx(expected, rel=1e-5, abs=1e-5)


@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=5))
def test_divergence_is_between_0_and_the_logarithm_of_the_heads(counts):
    rows = [[count / sum(row) for count in row] if any(row) else [1.0, 0, 0, 0] for row in counts]
    p = torch.tensor(rows, dtype=torch.float64)
    divergence = float(jensen_shannon(p))
    assert divergence == pytest.approx(references.jensen_shannon(rows), abs=1e-12)
    assert 0 <= divergence <= math.log(len(rows)) + 1e-12
    assert divergence == pytest.approx(float(jensen_shannon(p.flip(0, 1))), abs=1e-12)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_distributions(exponent):
    row = [0.5, 0.0, 2.0, 3.0]
    weights = torch.tensor([row, [0.0] * 4, [0.0, 0.0, 9.0, 9.0], [1e-30, 0, 0, 0]])[:, None, None]
    masked = torch.tensor([[[False, False, True, True]]])
    everything, some = (
        as_distributions(weights, mask, exponent)[:, 0, 0]
        for mask in (torch.zeros_like(masked), masked)
    )
    for p in (everything, some):
        torch.testing.assert_close(p.sum(-1), torch.ones(4))
    for p, given_row in zip(everything.tolist(), weights[:, 0, 0].tolist(), strict=True):
        assert p == pytest.approx(references.distribution_with_dummy(given_row, exponent), abs=1e-6)
    zero, smallest, larger, largest = (everything[0, key] for key in (1, 0, 2, 3))
    assert 0 < zero < smallest < larger < largest
    assert largest / zero == pytest.approx(math.exp(3**exponent), rel=1e-5)
    # Weights of masked keys count neither as weights nor as probability.
    assert some[:, 2:4].eq(0).all()
    assert some[:, 4].tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("exponent", [0.5, 0.1])
def test_negative_weights_have_no_power_but_the_first(exponent):
    weights = torch.tensor([0.5, 0.0, -2.0])[None, None, None]
    none = MASKS["none"]
    p = as_distributions(weights, none, 1.0)[0, 0, 0]
    torch.testing.assert_close(p[:3], torch.softmax(weights[0, 0, 0], -1))
    with pytest.raises(ValueError, match="below 0 .* 1"):
        as_distributions(weights, none, exponent)
    # A masked negative weight does not count.
    masked = torch.tensor([[[False, False, True]]])
    assert as_distributions(weights, masked, exponent).isfinite().all()


def test_heads_that_attend_to_nothing_differ_from_those_that_attend_to_something():
    masked, padding = torch.zeros(1, 1, 1, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.bool)

    def divergence(*heads):
        return float(sum_of_divergences(torch.tensor(heads)[:, None, None], masked, padding, 1.0))

    assert divergence([0.0, 0.0], [0.0, 0.0]) == 0
    assert divergence([0.0, 0.0], [5.0, 1.0]) == pytest.approx(math.log(2))
    assert divergence([5.0, 1.0], [5.0, 1.0]) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_fp32(dtype):
    weights = weights_of("rela_g", CAUSAL).to(dtype)
    for exponent in (None, 0.1):
        rounded = sum_of_divergences(weights, CAUSAL, NOTHING, exponent)
        exact = sum_of_divergences(weights.double(), CAUSAL, NOTHING, exponent)
        assert float(rounded) == pytest.approx(float(exact), rel=1e-5)


def test_large_weights_stay_finite():
    for case, exponent in (("rela_g", 0.1), ("rela_g", 1.0), ("rela_g_leaky_relu", 1.0)):
        weights = 1e4 * weights_of(case, MASKS["both"])
        expected = divergence_by_loops(weights, MASKS["both"], PADDED, exponent)
        found = sum_of_divergences(weights.float(), MASKS["both"], PADDED, exponent)
        assert float(found) == pytest.approx(expected, rel=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["softmax", "entmax15", "rela_g", "rela_g_gelu"])
def test_gpu_gives_the_same(case):
    weights, masked = weights_of(case, MASKS["both"]).float(), MASKS["both"]
    for exponent in exponents_of(case):
        here = sum_of_divergences(weights, masked, PADDED, exponent)
        there = sum_of_divergences(weights.cuda(), masked.cuda(), PADDED.cuda(), exponent)
        assert there.is_cuda and float(there) == pytest.approx(float(here), rel=1e-5)
