import math

import pytest
import torch

from fairseq_sparse.modules.lm_measures import best_epsilon, lm_measures
from fairseq_sparse.modules.output_transforms import OUTPUT_TRANSFORMS
from fairseq_sparse.ops import entmax, entmax_loss

ROWS, V = 200, 30


def distributions(alpha=1.5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(2)
    logits = 2 * torch.randn(ROWS, V, generator=generator, dtype=dtype)
    target = torch.randint(V, (ROWS,), generator=generator)
    return entmax(logits, alpha), target


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_the_sparsemax_score_is_1_minus_the_loss_of_logits_that_give_p(alpha):
    """sparsemax maps ``p`` to itself, and lower logits off its support do not reduce the loss."""
    p, target = distributions(alpha)
    loss = entmax_loss(p, target, 2.0, reduction="none")
    score = lm_measures(p, target, 1e-6)["sparsemax_score"]
    torch.testing.assert_close(score, 1 - loss)
    lower = p - (p == 0).double()
    assert (entmax_loss(lower, target, 2.0, reduction="none") >= loss - 1e-12).all()


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_the_divergence_and_the_perplexity_are_those_of_the_full_distributions(alpha):
    p, target = distributions(alpha)
    one_hot = torch.nn.functional.one_hot(target, V).double()
    middle = (p + one_hot) / 2

    def divergence(q):
        return (torch.xlogy(q, q) - torch.xlogy(q, middle)).nan_to_num().sum(-1)

    measures = lm_measures(p, target, 0.01)
    torch.testing.assert_close(measures["js_divergence"], (divergence(p) + divergence(one_hot)) / 2)
    smoothed = (p + 0.01) / (p + 0.01).sum(-1, keepdim=True)
    torch.testing.assert_close(
        measures["eps_nll"], -smoothed.gather(1, target[:, None]).squeeze(1).log()
    )


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_the_scores_keep_to_their_bounds(alpha):
    p, target = distributions(alpha, torch.float32)
    certain = torch.nn.functional.one_hot(target, V).float()
    for rows in (p, certain, certain.roll(1, dims=1)):
        measures = lm_measures(rows, target, 1e-6)
        for name, limit in (("sparsemax_score", 1.0), ("js_divergence", math.log(2))):
            assert (measures[name] >= -1e-6).all() and (measures[name] <= limit + 1e-6).all()
    right = lm_measures(certain, target, 1e-6)
    assert torch.allclose(right["sparsemax_score"], torch.ones(ROWS, dtype=torch.float64))
    assert torch.allclose(right["js_divergence"], torch.zeros(ROWS, dtype=torch.float64))


def test_weights_count_by_their_share():
    p, target = distributions()
    for name, value in lm_measures(3 * p, target, 1e-6).items():
        torch.testing.assert_close(value, lm_measures(p, target, 1e-6)[name])


def test_a_row_of_zeros_is_as_bad_as_one_that_is_certain_and_wrong():
    target = torch.tensor([2])
    wrong = torch.nn.functional.one_hot(torch.tensor([1]), V).double()
    expected = lm_measures(wrong, target, 1e-6)
    for name, value in lm_measures(torch.zeros(1, V), target, 1e-6).items():
        torch.testing.assert_close(value, expected[name])


def test_no_other_epsilon_gives_a_smaller_perplexity():
    p, target = distributions(2.0)
    gold = lm_measures(p, target, 0.0)["gold"]
    assert (gold == 0).any()
    found = best_epsilon(gold, V)

    def nll(epsilon):
        return lm_measures(p, target, epsilon)["eps_nll"].mean()

    assert 0 < found < math.inf
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0):
        assert nll(found) < nll(factor * found)
    assert best_epsilon(torch.full((9,), 0.5), V) == 0
    assert best_epsilon(torch.zeros(9), V) == math.inf


@pytest.mark.parametrize("name", OUTPUT_TRANSFORMS)
def test_a_transform_adds_the_measures_up(name):
    transform = OUTPUT_TRANSFORMS[name](name, alpha=1.5, tau=0.5)
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(ROWS, V, generator=generator)
    target = torch.randint(V, (ROWS,), generator=generator)
    target[::3] = 1  # padding
    counts = target != 1
    sums = transform.statistics(logits, target, 1, epsilon=0.01)
    measures = lm_measures(transform.probs(logits[counts]), target[counts], 0.01)
    for measure in ("sparsemax_score", "js_divergence", "eps_nll"):
        torch.testing.assert_close(sums[measure], measures[measure].sum())
    if transform.is_sparse:
        assert sums["nll"] == sums["eps_nll"]
    else:
        expected = torch.nn.functional.cross_entropy(logits[counts], target[counts])
        assert sums["nll"].item() == pytest.approx(expected.item() * counts.sum().item())
    assert "nll" not in transform.statistics(logits, target, 1)
