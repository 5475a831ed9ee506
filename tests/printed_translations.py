"""Translations as fairseq's commands print them, and what a model says of them."""

import math
import re
from dataclasses import dataclass

import torch
from fairseq.data.data_utils import collate_tokens

from fairseq_sparse.analysis.trained_models import load_models

UNK = 3


@dataclass(frozen=True)
class Hypothesis:
    """What is printed of a translation; scores in nats."""

    score: float
    words: tuple[str, ...]
    positional: tuple[float, ...]


@dataclass(frozen=True)
class Output:
    """What a run printed and logged."""

    text: str
    log: str

    def lines(self, kind):
        """Sentence number -> what stands in its lines of this kind, in the order printed."""
        found = {}
        for number, rest in re.findall(rf"^{kind}-(\d+)\t(.*)$", self.text, re.MULTILINE):
            found.setdefault(int(number), []).append(rest)
        return found

    def hypotheses(self):
        """Sentence number -> its hypotheses, in the order printed."""
        positional, found = self.lines("P"), {}
        for number, lines in self.lines("H").items():
            for line, logs in zip(lines, positional[number], strict=True):
                score, words = line.split("\t")
                hypothesis = Hypothesis(
                    float(score) * math.log(2),
                    tuple(words.split()),
                    tuple(float(value) * math.log(2) for value in logs.split()),
                )
                found.setdefault(number, []).append(hypothesis)
        return found

    def incomplete(self):
        """How many sentences had no complete translation, as the log says."""
        return sum(map(int, re.findall(r"(\d+) of \d+ sentences had no complete", self.log)))


class Scorer:
    """Scores of given translations, with all words of each put in at once."""

    def __init__(self, data, paths, language_model=None):
        self.models, task = load_models(paths, str(data))
        task.load_dataset("test")
        self.words = task.target_dictionary
        self.dataset = task.dataset("test")
        self.lm = None
        if language_model is not None:
            (self.lm,), _ = load_models([language_model], str(data))

    def source(self, number):
        return self.dataset[number]["source"]

    def reference(self, number):
        return self.words.string(self.dataset[number]["target"]).split()

    def encode(self, words):
        line = " ".join(words)
        return self.words.encode_line(line, add_if_not_exist=False, append_eos=True).long()

    @torch.no_grad()
    def distributions(self, sources, targets, temperature=1.0, unkpen=0.0, lm_weight=0.0):
        """Log-probabilities [targets, longest target, vocabulary] before each token."""
        pad, eos = self.words.pad(), self.words.eos()
        source = collate_tokens(sources, pad, left_pad=True)
        lengths = torch.tensor([len(tokens) for tokens in sources])
        previous = collate_tokens(targets, pad, eos, move_eos_to_beginning=True)
        found = []
        for model in self.models:
            logits, extra = model(source, lengths, previous)
            found.append(model.get_normalized_probs((logits / temperature, extra), log_probs=True))
        scores = torch.stack(found).logsumexp(dim=0) - math.log(len(found))
        if self.lm is not None:
            output = self.lm(previous)
            scores = scores + lm_weight * self.lm.get_normalized_probs(output, log_probs=True)
        scores[..., UNK] -= unkpen
        return scores

    def positional(self, numbers, words, **options):
        """Scores of each word of translations, and of the EOS."""
        targets = [self.encode(translation) for translation in words]
        scores = self.distributions([self.source(n) for n in numbers], targets, **options)
        return [
            row.gather(1, target[:, None]).squeeze(1)
            for row, target in zip(scores, targets, strict=False)
        ]
