"""Tokens masked by ``--no-repeat-ngram-size``, against a search in all earlier n-grams."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_sparse.generation.repeated_ngrams import RepeatedNGramMask

BOS, EOS, WORDS = 2, 7, range(3, 6)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 9), st.data())
def test_a_token_that_would_repeat_an_ngram_is_masked(size, hypotheses, length, data):
    row = st.lists(st.sampled_from(WORDS), min_size=length, max_size=length)
    rows = data.draw(st.lists(row, min_size=hypotheses, max_size=hypotheses))
    behind = [1] * 3  # padding at the end, as in fairseq's loop
    tokens = torch.tensor([[BOS, *row, *behind] for row in rows])
    log_probs = torch.zeros(hypotheses, 8)
    result = RepeatedNGramMask(size, 1, EOS)(tokens, log_probs, hypotheses, 1, step=length)
    assert result is log_probs
    for row, scores in zip(rows, log_probs, strict=True):
        ngrams = [row[start : start + size] for start in range(length - size + 1)]
        last = row[length - size + 1 :]
        masked = {word for word in WORDS if length >= size and [*last, word] in ngrams}
        assert set(torch.isneginf(scores).nonzero()[:, 0].tolist()) == masked


def test_the_end_of_a_sentence_in_a_prompt_is_a_token_of_its_ngrams():
    """In fairseq's loop, padding stands for it."""
    tokens = torch.tensor([[BOS, 3, 1, 4, 3, 1, 1]])
    scores = RepeatedNGramMask(2, 1, EOS)(tokens, torch.zeros(1, 8), 1, 1, step=4)
    assert torch.isneginf(scores)[0].nonzero().tolist() == [[EOS]]
