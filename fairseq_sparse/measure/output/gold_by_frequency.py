"""Rank and support of the reference's tokens, by the frequency of their words in training.

They tell apart why a model loses rare words: it ranks them too low, as a dense model can as well,
or gives them probability 0, as only a sparse one can. A token has the class of the word that it is
a part of; a word is lost if any of its tokens has p = 0. The end of the sentence counts as a word,
which occurs once in each sentence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any, Optional

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.files import lines_of
from fairseq_sparse.generation.normalized_scores import refuse_nan
from fairseq_sparse.measure.alignment.word_alignment import MARKED_PIECE, words_of
from fairseq_sparse.measure.cache import BEAM
from fairseq_sparse.measure.text.word_frequency import LIMITS, bucket_of, count_words
from fairseq_sparse.measure.translator import (
    ForcedSteps,
    Translator,
    forced_steps,
    with_references,
)


class WordClasses:
    """The frequency classes of the words of sentences, those of ``word_frequency.LIMITS``.

    Args:
        dictionary: that of the target language.
        training: a text tokenised as the data, before or after words were split.
        subwords: how words were split, as for :func:`words_of`.

    Raises:
        AnalysisError: the text is empty, or has whole words where the dictionary has parts of them
            and each token is to be a word.
    """

    def __init__(self, dictionary: Dictionary, training: Path, subwords: str):
        lines = lines_of(training)
        if not lines:
            raise AnalysisError(f"--by-frequency {training} is empty")
        self.dictionary, self.subwords, self._sentences = dictionary, subwords, len(lines)
        marked = set(filter(MARKED_PIECE.fullmatch, dictionary.symbols))
        if (
            subwords == "none"
            and marked
            and marked.isdisjoint(chain.from_iterable(map(str.split, lines)))
        ):
            raise AnalysisError(
                f"--by-frequency {training} has whole words, the dictionary parts of them, "
                f"such as {min(marked)}: give --subwords"
            )
        # sentencepiece would take a line of whole words for one word.
        pieces = sum(line.startswith("\u2581") for line in lines)
        split = "none" if subwords == "sentencepiece" and pieces <= len(lines) / 2 else subwords
        self._frequencies = count_words(words_of(line.split(), split).text for line in lines)
        if subwords == "none":
            # <unk> was learned from all the words that it stands for.
            unknown = self._frequencies.keys() - set(dictionary.symbols)
            of_unknown = sum(self._frequencies[word] for word in unknown)
            self._frequencies[dictionary.unk_word] += of_unknown

    def classify(self, sentence: Tensor) -> tuple[Tensor, Tensor]:
        """Return, for each token of a sentence, the number of its class and of its word, from 0.

        Args:
            sentence: tokens, with EOS and without padding, ``[length]``.
        """
        words = words_of(
            [self.dictionary[token] for token in sentence[:-1].tolist()], self.subwords
        )
        frequencies = [*(self._frequencies[word] for word in words.text), self._sentences]
        word = torch.from_numpy(words.of_positions(len(sentence)))
        return torch.tensor([bucket_of(frequency) for frequency in frequencies])[word], word


def gold_rank(steps: ForcedSteps) -> Tensor:
    """Return 1 + the number of tokens with a larger logit than the given one, ``[steps]``."""
    # Adaptive softmax has no logits, but no ties at 0 either.
    scores = steps.log_p if steps.logits is None else steps.logits
    gold = scores.gather(1, steps.token.unsqueeze(1))
    return 1 + (scores > gold).sum(1)


def measure_gold(
    translator: Translator, batches: Iterable[dict[str, Any]], subset: str, classes: WordClasses
) -> dict[str, Any]:
    """Return rank and support of the references' tokens, in each frequency class and in all.

    Returns:
        ``sentences``; ``classes``, for each class :func:`summarize` with its frequencies ``least``
        and ``most`` (None in the last one); and ``all``, the summary of all tokens.

    Raises:
        AnalysisError: there are no references, or no sentences; or the model is an ensemble.
        ValueError: a probability is NaN.
    """
    model, padding = translator.model, translator.task.target_dictionary.pad()
    parts: dict[str, list[Tensor]] = defaultdict(list)
    sentences = words = 0
    for sample in with_references(batches, subset):
        target = sample["target"]
        for steps in forced_steps([model], sample["net_input"], target, padding):
            refuse_nan(steps.log_p)
            parts["rank"].append(gold_rank(steps).cpu())
            parts["zero"].append(steps.token_log_p.isneginf().cpu())
            parts["nonzeros"].append((~steps.log_p.isneginf()).sum(1).cpu())
        for row in target.cpu():
            of_token, word = classes.classify(row[row != padding])
            parts["class"].append(of_token)
            parts["word"].append(words + word)
            words += int(word[-1]) + 1
        sentences += len(target)
    if not sentences:
        raise AnalysisError("no sentence was counted")
    tokens = {name: torch.cat(values) for name, values in parts.items()}
    return {
        "sentences": sentences,
        "classes": [
            {"least": least, "most": most, **summarize(tokens, tokens["class"] == number)}
            for number, (least, most) in enumerate(LIMITS)
        ],
        "all": summarize(tokens, torch.ones_like(tokens["zero"])),
    }


def summarize(tokens: dict[str, Tensor], chosen: Tensor) -> dict[str, Optional[float]]:
    """Summarize some tokens.

    Args:
        tokens: ``rank``, ``zero``, ``nonzeros`` and ``word`` of every token.
        chosen: a mask of the tokens; of a word, it has all tokens or none.

    Returns:
        ``tokens`` and ``words``, their numbers; ``mean_rank`` and ``median_rank``, the lower one
        of two; ``first`` and ``in_beam``, the shares with rank 1 and up to ``BEAM``;
        ``zero``, the share of tokens with p = 0, and ``words_zero``, that of words with such a
        token; ``nonzeros``, the mean number of tokens with p > 0 at the step. All but the numbers
        are None without tokens.
    """
    rank, zero, nonzeros, word = (
        tokens[name][chosen] for name in ("rank", "zero", "nonzeros", "word")
    )
    words = len(word.unique())
    return {
        "tokens": len(rank),
        "words": words,
        "mean_rank": _mean(rank),
        "median_rank": int(rank.median()) if words else None,
        "first": _mean(rank == 1),
        "in_beam": _mean(rank <= BEAM),
        "zero": _mean(zero),
        "words_zero": len(word[zero].unique()) / words if words else None,
        "nonzeros": _mean(nonzeros),
    }


def _mean(values: Tensor) -> Optional[float]:
    return values.double().mean().item() if len(values) else None
