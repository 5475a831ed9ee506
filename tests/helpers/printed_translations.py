"""Translations as fairseq's commands print them, and their scores by the models."""

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
from fairseq_sparse.measure.model_loading import load_models

UNK = 3


@dataclass(frozen=True)
class Hypothesis:
    """A printed translation; scores in nats."""

    score: float
    words: tuple[str, ...]
    positional: tuple[float, ...]


@dataclass(frozen=True)
class Output:
    """The output and the log of a run."""

    text: str
    log: str

    def lines(self, kind):
        """Return sentence number -> the contents of its lines of a kind, in the order printed."""
        found = {}
        for number, rest in re.findall(rf"^{kind}-(\d+)\t(.*)$", self.text, re.MULTILINE):
            found.setdefault(int(number), []).append(rest)
        return found

    def hypotheses(self):
        """Return sentence number -> its hypotheses, in the order printed."""
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
        """Return the number of sentences without a complete translation, from the log."""
        return sum(map(int, re.findall(r"(\d+) of \d+ sentences had no complete", self.log)))


def run_here(caplog, data, paths, *flags, command=generate):
    """Run fairseq-generate (or another command) with one or several models in this process.

    Args:
        caplog: pytest's fixture.
        flags: further flags; they override those set here.
    """
    arguments = [data, "--user-dir", toy.USER_DIR, "--path", ":".join(map(str, paths)), "--cpu"]
    arguments += ["--task", "translation_sparse", "--source-lang", "de", "--target-lang", "en"]
    if command is generate:
        arguments += ["--max-tokens", 200, "--num-workers", 0, "--no-progress-bar"]
    gc.collect()  # fairseq-interactive logs a summary when it is freed: free an earlier one now
    caplog.clear()
    caplog.set_level("INFO", "fairseq_sparse")
    argv = ["fairseq", *map(str, arguments), *map(str, flags)]
    with mock.patch("sys.argv", argv), contextlib.redirect_stdout(io.StringIO()) as printed:
        command.cli_main()
    gc.collect()
    return Output(printed.getvalue(), caplog.text)


def agree(actual, expected):
    """Return whether log-probabilities agree; -inf agrees with any whose probability is near 0.

    1.5-entmax squares half of a difference of logits, so that a probability near 0 has few digits.
    Therefore the roots are compared: 1e-4 is ten roundings of half a logit of 16, over a
    temperature of 0.05. 5e-4 is for the printed digits.
    """
    actual, expected = (torch.as_tensor(x).div(2).exp() for x in (actual, expected))
    return (actual - expected).abs() <= 1e-4 + 5e-4 * expected


class Scorer:
    """A scorer of given translations, by teacher forcing."""

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
        """Return log-probabilities [targets, longest target, vocabulary] of each next token."""
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
        """Return the scores of each word and of the EOS, for each translation."""
        targets = [self.encode(translation) for translation in words]
        scores = self.distributions([self.source(n) for n in numbers], targets, **options)
        return [
            row.gather(1, target[:, None]).squeeze(1)
            for row, target in zip(scores, targets, strict=False)
        ]

    def live_strings(self, number, max_len, temperature, limit, least):
        """Return all translations in which each token has more than the log-probability ``least``.

        The result is None if there are more than ``limit``.
        """
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
                for token in (row > least).nonzero().flatten().tolist():
                    if token == self.words.eos():
                        found |= {prefix} if length > 0 else set()
                    else:
                        longer.append((*prefix, self.words[token]))
            prefixes = longer
        return found
