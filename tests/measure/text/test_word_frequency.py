"""F1 by training frequency equals that of a count by hand, word by word."""

import random

from fairseq_sparse.measure.text.word_frequency import EDGES, count_words, f1_by_frequency

WORDS = [f"w{number}" for number in range(40)]


def matches(hypothesis: list[str], reference: list[str]) -> list[str]:
    """Return the words of a hypothesis that find a partner in the reference."""
    left = list(reference)
    found = []
    for word in hypothesis:
        if word in left:
            left.remove(word)
            found.append(word)
    return found


def test_f1_is_that_of_a_count_word_by_word() -> None:
    def sentences(count: int) -> list[list[str]]:
        weights = [1.4**number for number in range(len(WORDS))]
        return [random.choices(WORDS, weights, k=random.randint(0, 9)) for _ in range(count)]

    training, hypotheses, references = sentences(900), sentences(200), sentences(200)
    flat = [word for sentence in training for word in sentence]
    count = {word: flat.count(word) for word in [*WORDS, "new", "newer", "newest"]}
    frequencies = count_words(training)
    assert sum(frequencies.values()) == len(flat)
    hypotheses[0] += ["new", "new", "newer"]
    references[0] += ["new", "newest"]
    found = f1_by_frequency(hypotheses, references, frequencies)
    for bucket, following in zip(found, [*EDGES[1:], float("inf")], strict=True):

        def inside(words: list[str], least=bucket["least"], following=following) -> int:
            return sum(least <= count[word] < following for word in words)

        pairs = list(zip(hypotheses, references, strict=True))
        matched = sum(inside(matches(*pair)) for pair in pairs)
        translated = sum(inside(hypothesis) for hypothesis, _ in pairs)
        reference = sum(inside(words) for _, words in pairs)
        assert (bucket["matched"], bucket["translated"], bucket["reference"]) == (
            *(matched, translated, reference),
        )
        if translated + reference:
            precision, recall = matched / max(translated, 1), matched / max(reference, 1)
            harmonic = 2 * precision * recall / (precision + recall) if matched else 0
            assert abs(bucket["f1"] - harmonic) < 1e-12
        else:
            assert bucket["f1"] is None
    assert found[0]["matched"] and found[-1]["matched"]
