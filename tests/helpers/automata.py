"""Tiny models whose next-token probabilities come from a table with many exact zeros.

A table is a function of a source sentence (one word, here called its seed) and a target prefix, so
that every string of non-zero probability can be written down by brute force.
"""

import math
import random
from dataclasses import dataclass
from functools import cache
from typing import Optional

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqDecoder, FairseqEncoder, FairseqEncoderDecoderModel
from fairseq.models.lstm import LSTMDecoder, LSTMEncoder, LSTMModel
from torch import nn

PAD, EOS = 1, 2
FIRST_WORD = 4


def make_dictionary(words: int) -> Dictionary:
    """Return a dictionary of *words* words after fairseq's four special symbols."""
    dictionary = Dictionary()
    for word in range(words):
        dictionary.add_symbol(f"w{word}")
    return dictionary


@dataclass(frozen=True)
class Table:
    """Next-token probabilities after each prefix, random but always the same.

    Args:
        words: number of words in the dictionary
        branching: largest number of words that can follow a prefix
        eos: share of the prefixes that can end
        dead_end: share of the prefixes that nothing can follow
        normalized: whether probabilities add up to 1 (as entmax) or not (as alpha-ReLU)
        salt: tells tables apart that are otherwise alike
    """

    words: int
    branching: int = 2
    eos: float = 0.5
    dead_end: float = 0.1
    normalized: bool = True
    salt: int = 0

    @property
    def vocabulary(self) -> int:
        return FIRST_WORD + self.words

    @cache  # noqa: B019  (tables live as long as the tests)
    def logits(self, seed: int, prefix: tuple[int, ...]) -> torch.Tensor:
        """Return logits of the next token, [vocabulary]; -inf where the probability is 0."""
        if EOS in prefix:  # a search must not get here; all tokens are possible, so that it shows
            return torch.zeros(self.vocabulary)
        chance = random.Random(f"{self.salt} {seed} {prefix}")
        logits = torch.full((self.vocabulary,), -math.inf)
        if chance.random() < self.dead_end:
            return logits
        tokens = chance.sample(
            range(FIRST_WORD, self.vocabulary), chance.randint(1, self.branching)
        )
        if chance.random() < self.eos:
            tokens.append(EOS)
        for token in tokens:
            logits[token] = math.log(chance.uniform(0.05, 1))
        return logits


class LoudTable(Table):
    """A table whose weights can exceed 1, as those of alpha-ReLU; give it normalized=False."""

    def logits(self, seed: int, prefix: tuple[int, ...]) -> torch.Tensor:
        return super().logits(seed, prefix) + 1.0


class BrokenTable(Table):
    """A table that gives NaN for a word in one sentence, once a word has been produced."""

    seed = FIRST_WORD + 2

    def logits(self, seed: int, prefix: tuple[int, ...]) -> torch.Tensor:
        logits = super().logits(seed, prefix)
        if seed == self.seed and prefix:
            logits = logits.index_fill(0, torch.tensor([FIRST_WORD]), math.nan)
        return logits


def dense_table(words: int) -> Table:
    """A table without zeros, but for the special symbols."""
    return Table(words, branching=words, eos=1.0, dead_end=0.0)


class Script:
    """A table given explicitly.

    Args:
        follow: for each prefix, the tokens that may follow it and their probabilities
        words: number of words in the dictionary
    """

    normalized = False

    def __init__(self, follow: dict[tuple[int, ...], dict[int, float]], words: int):
        self.follow = follow
        self.words = words

    def logits(self, seed: int, prefix: tuple[int, ...]) -> torch.Tensor:
        logits = torch.full((FIRST_WORD + self.words,), -math.inf)
        for token, probability in self.follow.get(prefix, {}).items():
            logits[token] = math.log(probability)
        return logits


class Distributions(Script):
    """A script whose probabilities add up to 1 after each prefix."""

    normalized, dead_end = True, 0.0


class TableEncoder(FairseqEncoder):
    def forward(self, src_tokens, src_lengths=None, **kwargs):
        words = src_tokens.masked_fill(src_tokens.le(EOS), 0)
        return {"seeds": words.max(dim=1).values, "src_tokens": src_tokens}

    def reorder_encoder_out(self, encoder_out, new_order):
        return {key: value.index_select(0, new_order) for key, value in encoder_out.items()}

    def max_positions(self):
        return 100


class TableDecoder(FairseqDecoder):
    """A decoder without incremental state that looks up its logits."""

    def __init__(self, dictionary, table: Table, is_sparse: bool):
        super().__init__(dictionary)
        self.table = table
        self.output_projection = nn.Identity()
        self.output_projection.is_sparse = is_sparse
        # Unlike a row of entmax, a row without any continuation does not sum to 1.
        sums_to_one = table.normalized and getattr(table, "dead_end", 1.0) == 0.0
        self.output_projection.scores_are_log_probs = sums_to_one
        self.steps = 0

    def output_layer(self, features):
        return features

    def extract_features(self, prev_output_tokens, encoder_out=None, **kwargs):
        self.steps += 1
        seeds = encoder_out["seeds"].tolist()
        prefixes = [tuple(row[1:]) for row in prev_output_tokens.tolist()]
        logits = torch.stack(
            [
                torch.stack([self.table.logits(seed, prefix[:n]) for n in range(len(prefix) + 1)])
                for seed, prefix in zip(seeds, prefixes, strict=True)
            ]
        )
        source_length = encoder_out["src_tokens"].size(1)
        attention = torch.full((*logits.shape[:2], source_length), 1 / source_length)
        return logits, {"attn": [attention]}

    def get_normalized_probs(self, net_output, log_probs, sample=None):
        logits = net_output[0]
        log_p = normalize(logits) if self.table.normalized else logits.clone().contiguous()
        return log_p if log_probs else log_p.exp()

    def max_positions(self):
        return 100


class TableModel(FairseqEncoderDecoderModel):
    def __init__(self, dictionary: Dictionary, table: Table, is_sparse: bool = True):
        super().__init__(TableEncoder(dictionary), TableDecoder(dictionary, table, is_sparse))


class SparseLSTM(LSTMModel):
    """A recurrent model with incremental state, which sets small probabilities to 0."""

    def __init__(self, dictionary, hidden=16):
        sizes = {"embed_dim": hidden, "hidden_size": hidden, "num_layers": 1}
        dropout = {"dropout_in": 0.0, "dropout_out": 0.0}
        encoder = LSTMEncoder(dictionary, **sizes, **dropout)
        decoder = LSTMDecoder(
            dictionary, **sizes, **dropout, out_embed_dim=hidden, encoder_output_units=hidden
        )
        super().__init__(encoder, decoder)
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter, std=0.6)
        self.decoder.fc_out.bias.data[EOS] += 1.5

    def get_normalized_probs(self, net_output, log_probs, sample=None):
        probs = torch.softmax(net_output[0].double(), dim=-1)
        probs = torch.where(probs < 0.05, torch.zeros_like(probs), probs)
        probs = (probs / probs.sum(dim=-1, keepdim=True).clamp(min=1e-9)).float()
        return probs.log() if log_probs else probs


def normalize(logits: torch.Tensor) -> torch.Tensor:
    """Return the log-softmax; a row of -inf stays unchanged."""
    return torch.log_softmax(logits, dim=-1).masked_fill(logits.eq(-math.inf), -math.inf)


def log_probs(tables: list[Table], seed: int, prefix: tuple[int, ...], temperature: float = 1.0):
    """Return log-probabilities of the next token under the average of *tables*, [vocabulary]."""
    rows = []
    for table in tables:
        logits = table.logits(seed, prefix) / temperature
        rows.append(normalize(logits) if table.normalized else logits)
    return torch.logsumexp(torch.stack(rows), dim=0) - math.log(len(tables))


def positional_scores(tables: list[Table], seed: int, tokens, temperature: float = 1.0):
    """Return the log-probability of each of *tokens* given those before it."""
    return [
        log_probs(tables, seed, tuple(tokens[:n]), temperature)[token].item()
        for n, token in enumerate(tokens)
    ]


def every_string(tables: list[Table], seed: int, max_len: int, min_len: int = 1):
    """Return all strings of non-zero probability with at most *max_len* words.

    Returns:
        dict from tokens (a tuple that ends in EOS) to log-probability
    """
    found = {}
    prefixes = [((), 0.0)]
    for length in range(max_len + 1):
        longer = []
        for prefix, score in prefixes:
            row = log_probs(tables, seed, prefix).tolist()
            for token, log_p in enumerate(row):
                if log_p == -math.inf or (token == EOS and length < min_len):
                    continue
                if token == EOS:
                    found[(*prefix, EOS)] = score + log_p
                else:
                    longer.append(((*prefix, token), score + log_p))
        prefixes = longer
    return found


def beam_search(tables: list[Table], seed: int, beam: int, max_len: int, min_len: int = 1):
    """Run a plain beam search over live hypotheses only.

    Returns:
        list of (normalised score, tokens, whether it is complete), best first
    """
    finished, live = [], [((), 0.0)]
    for length in range(max_len + 1):
        candidates = []
        for prefix, score in live:
            row = log_probs(tables, seed, prefix).tolist()
            for token, log_p in enumerate(row):
                allowed = length >= min_len if token == EOS else length < max_len
                if allowed and log_p > -math.inf:
                    candidates.append(((*prefix, token), score + log_p))
        candidates.sort(key=lambda candidate: -candidate[1])
        if not candidates and not finished:
            prefix, score = live[0]
            return [(score / (length + 1), (*prefix, EOS), False)]
        for tokens, score in candidates[:beam]:
            if tokens[-1] == EOS and len(finished) < beam:
                finished.append((score / (length + 1), tokens, True))
        live = [candidate for candidate in candidates if candidate[0][-1] != EOS][:beam]
        if len(finished) == beam or not live:
            break
    return sorted(finished, key=lambda hypothesis: -hypothesis[0])


def make_sample(seeds: list[int], first_id: int = 0, lengths: Optional[list[int]] = None) -> dict:
    """Return a batch of source sentences, one per seed, as a task passes it to a generator.

    A sentence consists of its seed, repeated as often as *lengths* says (default: once).
    """
    lengths = [1] * len(seeds) if lengths is None else lengths
    rows = [
        [PAD] * (max(lengths) - length) + [seed] * length + [EOS]
        for seed, length in zip(seeds, lengths, strict=True)
    ]
    src_lengths = torch.tensor(lengths) + 1
    return {
        "id": torch.arange(first_id, first_id + len(seeds)),
        "net_input": {"src_tokens": torch.tensor(rows), "src_lengths": src_lengths},
    }
