import math

import pytest
import torch
from fairseq import search

from automata import EOS, make_dictionary
from fairseq_sparse.generation import SparseSearch

DICTIONARY = make_dictionary(6)
A, B, C, D = range(4, 8)
DEAD = -math.inf


class Scripted(search.Search):
    """A strategy that offers the candidates it is given, and records its calls."""

    def __init__(self, *candidates):
        super().__init__(DICTIONARY)
        self.candidates = [torch.tensor(part) for part in candidates]  # scores, tokens, beams
        self.calls = []

    def step(self, step, lprobs, scores, prev_output_tokens=None, original_batch_idxs=None):
        return self.candidates

    def set_src_lengths(self, src_lengths):
        self.calls.append(("set_src_lengths", src_lengths.tolist()))

    def init_constraints(self, batch_constraints, beam_size):
        self.calls.append(("init_constraints", batch_constraints, beam_size))

    def prune_sentences(self, batch_idxs):
        self.calls.append(("prune_sentences", batch_idxs.tolist()))

    def update_constraints(self, active_hypos):
        self.calls.append(("update_constraints", active_hypos.tolist()))


def take_step(strategy, step=1, scores=None, batch=1, beam=2):
    sparse = SparseSearch(DICTIONARY, strategy)
    lprobs = torch.zeros(batch, beam, len(DICTIONARY))
    if scores is None:
        scores = torch.zeros(batch, beam, step)
    sparse.step(0, lprobs, scores[:, :, :0])
    result = sparse.step(step, lprobs, scores, None, torch.arange(100, 100 + batch))
    return sparse, [part.tolist() for part in result]


def test_active_candidates_come_first_and_dead_ones_fill_up():
    strategy = Scripted([[DEAD, -3.0, -1.0]], [[A, B, C]], [[0, 0, 1]])
    sparse, (scores, tokens, beams) = take_step(strategy)
    assert scores == [[-3.0, -1.0, DEAD, DEAD]]  # in the strategy's order, not by score
    assert tokens == [[B, C, EOS, EOS]]
    assert beams[0][:2] == [0, 1]
    assert sparse.finished == sparse.incomplete == set()


def test_candidates_of_beam_search_are_left_as_they_are():
    torch.manual_seed(1)
    lprobs, scores = torch.randn(5, 3, len(DICTIONARY)), torch.randn(5, 3, 2)
    strategy = search.BeamSearch(DICTIONARY)
    expected = strategy.step(2, lprobs, scores)
    sparse = SparseSearch(DICTIONARY, strategy)
    for ours, stock in zip(sparse.step(2, lprobs, scores), expected, strict=True):
        assert torch.equal(ours, stock)


def test_exhausted_sentences():
    strategy = Scripted(
        [[-1.0, -2.0, DEAD, DEAD], [-1.0, DEAD, DEAD, DEAD], [DEAD] * 4],
        [[EOS, A, B, C], [EOS, A, B, C], [EOS, A, B, C]],
        [[0, 1, 0, 1]] * 3,
    )
    scores = torch.tensor([[-0.5, -0.7], [-0.5, -0.7], [DEAD, -0.3]]).unsqueeze(2)
    sparse, (scores, tokens, beams) = take_step(strategy, scores=scores, batch=3)
    assert sparse.finished == {1, 2}  # the second has just found its only string
    assert sparse.incomplete == {2}
    assert (scores[2][0], tokens[2][0], beams[2][0]) == (pytest.approx(-0.3), EOS, 1)
    assert scores[2][1:] == [DEAD] * 3


def test_empty_prefix_of_the_first_step():
    strategy = Scripted([[DEAD] * 4], [[A, B, C, D]], [[0] * 4])
    sparse = SparseSearch(DICTIONARY, strategy)
    lprobs = torch.full((1, 2, len(DICTIONARY)), DEAD)
    scores, tokens, beams = sparse.step(0, lprobs, torch.zeros(1, 2, 0))
    assert (scores[0, 0].item(), tokens[0, 0].item(), beams[0, 0].item()) == (0.0, EOS, 0)
    assert sparse.incomplete == {0}


def test_constraint_states_follow_their_candidates():
    strategy = Scripted([[-1.0, -2.0], [-1.0, -2.0], [DEAD, -2.0]], [[A, B]] * 3, [[0, 1]] * 3)
    sparse, _ = take_step(strategy, batch=3)
    sparse.init_constraints(None, 2)
    sparse.prune_sentences(torch.tensor([0, 2]))
    sparse.update_constraints(torch.tensor([[1, 0], [0, 3]]))
    # The last candidate is a dead filler, for which any state will do.
    assert strategy.calls == [
        ("init_constraints", None, 2),
        ("prune_sentences", [0, 2]),
        ("update_constraints", [[1, 0], [1, 1]]),
    ]


def test_what_generators_ask_of_a_strategy_is_passed_on():
    strategy = search.LengthConstrainedBeamSearch(DICTIONARY, 1, 0, 1, 0)
    sparse = SparseSearch(DICTIONARY, strategy)
    sparse.set_src_lengths(torch.tensor([3, 4]))
    assert sparse.needs_src_lengths
    assert strategy.src_lengths.tolist() == [3, 4]
    assert not sparse.supports_constraints
    assert SparseSearch(
        DICTIONARY, search.LexicallyConstrainedBeamSearch(DICTIONARY, "ordered")
    ).supports_constraints
    assert not SparseSearch(DICTIONARY, Scripted()).needs_src_lengths


def test_diverse_groups_keep_their_history_when_sentences_end():
    torch.manual_seed(1)
    beam, batch = 4, 5
    lprobs = torch.randn(3, batch, beam, len(DICTIONARY)).log_softmax(dim=-1)
    scores = torch.zeros(batch, beam, 2)
    together = SparseSearch(DICTIONARY, search.DiverseBeamSearch(DICTIONARY, 2, 0.5))
    ids = torch.arange(1000, 1000 + batch)  # numbers in the data set, larger than the batch
    for step in range(2):
        together.step(step, lprobs[step].clone(), scores[:, :, :step], None, ids)
    kept = torch.tensor([1, 4])
    together.prune_sentences(kept)
    result = together.step(2, lprobs[2, kept].clone(), scores[kept], None, ids[kept])
    for row, sentence in enumerate(kept.tolist()):
        alone = SparseSearch(DICTIONARY, search.DiverseBeamSearch(DICTIONARY, 2, 0.5))
        one = slice(sentence, sentence + 1)
        for step in range(3):
            expected = alone.step(
                step, lprobs[step, one].clone(), scores[one, :, :step], None, None
            )
        for ours, theirs in zip(result, expected, strict=True):
            assert torch.equal(ours[row], theirs[0])
