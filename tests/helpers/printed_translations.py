"""Translations as fairseq's commands print them, and what a model says of them."""

import contextlib
import gc
import io
import math
import re
from dataclasses import dataclass
from unittest import mock

import torch
from fairseq.data.data_utils import collate_tokens
from fairseq_cli import generate

import toy
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


def run_here(caplog, data, paths, *flags, command=generate):
    """Run fairseq-generate (or another command) with one or several models in this process.

    Args:
        caplog: pytest's fixture.
        flags: one that is given here as well takes the place of ours.
    """
    arguments = [data, "--user-dir", toy.USER_DIR, "--path", ":".join(map(str, paths)), "--cpu"]
    arguments += ["--task", "translation_sparse", "--source-lang", "de", "--target-lang", "en"]
    if command is generate:
        arguments += ["--max-tokens", 200, "--num-workers", 0, "--no-progress-bar"]
    gc.collect()  # fairseq-interactive sums up when its task goes: that of an earlier run, now
    caplog.clear()
    caplog.set_level("INFO", "fairseq_sparse")
    argv = ["fairseq", *map(str, arguments), *map(str, flags)]
    with mock.patch("sys.argv", argv), contextlib.redirect_stdout(io.StringIO()) as printed:
        command.cli_main()
    gc.collect()
    return Output(printed.getvalue(), caplog.text)


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

    def live_strings(self, number, max_len, temperature, limit):
        """All translations of nonzero probability; None if there are more than *limit*."""
        found, prefixes = set(), [()]
        for length in range(max_len + 1):
            if len(found) + len(prefixes) > limit:
                return None
            if not prefixes:
                break
            sources = [self.source(number)] * len(prefixes)
            targets = [self.encode(prefix) for prefix in prefixes]
            rows = self.distributions(sources, targets, temperature)[:, length]
            longer = []
            for prefix, row in zip(prefixes, rows, strict=True):
                for token in (row > -math.inf).nonzero().flatten().tolist():
                    if token == self.words.eos():
                        found |= {prefix} if length > 0 else set()
                    else:
                        longer.append((*prefix, self.words[token]))
            prefixes = longer
        return found
