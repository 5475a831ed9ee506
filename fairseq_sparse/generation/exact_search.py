"""Search that finds the best translation of a sparse model, and proves that it is the best."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from fairseq.data.data_utils import collate_tokens
from fairseq.search import BeamSearch as BeamSearchStrategy
from torch import Tensor, nn

from fairseq_sparse.generation.certificate import ROUNDING
from fairseq_sparse.generation.frontier import Frontier, Prefix
from fairseq_sparse.generation.normalized_scores import refuse_nan
from fairseq_sparse.generation.search_settings import SearchSettings
from fairseq_sparse.generation.sparse_sequence_generator import SparseSequenceGenerator

# Number of prefixes that are expanded at once.
BATCH = 64


@dataclass(frozen=True)
class NextTokens:
    """The distribution of the next token after any prefix of a translation of one sentence.

    Args:
        models: an ensemble, whose probabilities are averaged.
        encoder_outs: the output of each encoder for the source sentence, a batch of one.
        pad: index of padding.
        eos: the token that ends a translation.
        bos: the first token of the decoder's input.
    """

    models: list[nn.Module]
    encoder_outs: list[Any]
    pad: int
    eos: int
    bos: int

    @classmethod
    def of_sentence(
        cls, models: list[nn.Module], encoder_outs: list[Any], row: int, *options: Any
    ) -> "NextTokens":
        """Return the distribution for one sentence, given the *encoder_outs* of its whole batch.

        Args:
            options: the remaining arguments of the class.
        """
        index = torch.tensor([row], device=_device(models))
        encoder_outs = [
            model.encoder.reorder_encoder_out(encoder_out, index)
            for model, encoder_out in zip(models, encoder_outs, strict=True)
        ]
        return cls(models, encoder_outs, *options)

    @torch.no_grad()
    def log_probs(self, prefixes: list[tuple[int, ...]]) -> Tensor:
        """Return log-probabilities of the next token, ``[prefixes, vocabulary]``.

        Raises:
            ValueError: a probability is NaN.
        """
        rows = [torch.tensor([self.bos, *prefix]) for prefix in prefixes]
        tokens = collate_tokens(rows, self.pad)  # [prefixes, longest]
        last = torch.tensor([len(prefix) for prefix in prefixes])
        device = _device(self.models)
        tokens, last = tokens.to(device), last.to(device)
        sentence = torch.zeros(len(prefixes), dtype=torch.long, device=device)
        found = []
        for model, encoder_out in zip(self.models, self.encoder_outs, strict=True):
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, sentence)
            features, extra = model.decoder.extract_features(tokens, encoder_out=encoder_out)
            features = features[torch.arange(len(prefixes), device=device), last].unsqueeze(1)
            logits = model.decoder.output_layer(features)  # [prefixes, 1, vocabulary]
            found.append(model.get_normalized_probs((logits, extra), log_probs=True)[:, 0])
        log_probs = mean_log_probs(found)
        refuse_nan(log_probs)
        log_probs[:, self.pad] = -math.inf
        return log_probs


def _device(models: list[nn.Module]) -> Optional[torch.device]:
    return next((parameter.device for parameter in models[0].parameters()), None)


def mean_log_probs(log_probs: list[Tensor]) -> Tensor:
    """Return the logarithms of the mean of the models' probabilities."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.logsumexp(torch.stack(log_probs), dim=0) - math.log(len(log_probs))


class Translation(NamedTuple):
    """A complete translation."""

    score: float  # final
    tokens: tuple[int, ...]  # with EOS
    log_probs: tuple[float, ...]  # of each token


class BestTranslations:
    """The *nbest* best of the translations that were offered, each of them once."""

    def __init__(self, nbest: int):
        self.nbest = nbest
        self._heap: list[Translation] = []  # the worst first
        self._known: set[tuple[int, ...]] = set()

    def offer(self, translation: Translation) -> bool:
        """Add a translation if it is one of the best; return whether none had to be left out."""
        if translation.tokens in self._known:
            return True  # an incumbent that the search found again
        self._known.add(translation.tokens)
        heapq.heappush(self._heap, translation)
        if len(self._heap) <= self.nbest:
            return True
        self._known.remove(heapq.heappop(self._heap).tokens)
        return False

    @property
    def threshold(self) -> float:
        """The score that a translation must exceed to be among the best."""
        return self._heap[0].score if len(self._heap) == self.nbest else -math.inf

    def sorted(self) -> list[Translation]:
        """Return the translations, best first."""
        return sorted(self._heap, reverse=True)


@dataclass
class ExactResult:
    """The result of an exact search.

    Attributes:
        translations: the best translations found, best first.
        exact: whether these are all the translations that the model can produce.
        optimal: whether it is proven that no other translation within the length limits has a
            better score than the first of them.
        bound: the best final score that an unexamined translation can have; -inf if none can be
            better than those found.
        proven_length: any unexamined translation with a better score than the first has more than
            this number of tokens, EOS counted; the length limit if ``optimal``.
        nodes: number of expanded prefixes.
    """

    translations: list[Translation] = field(default_factory=list)
    exact: bool = True
    optimal: bool = True
    bound: float = -math.inf
    proven_length: int = 0
    nodes: int = 0


class ExactSearch:
    """Best-first search over the translations of nonzero probability.

    It always expands the most probable remaining prefix (uniform-cost search). The model's zeros
    prune the tree, and so do the translations found: a prefix that cannot become better than the
    *nbest*-th of them is left out (Stahlberg & Byrne 2019). Whatever remains after *node_limit*
    prefixes has a known bound.

    How much is pruned depends on the score. The log-probability of a prefix bounds all its
    continuations, and closely: further tokens may cost nothing, since a probability of 1 is common
    in a sparse model and no model has a provable minimum cost per token. With a score divided by
    the length, far less is pruned: the bound is that of the longest continuation,
    ``log p / (max_len + 1) ** len_penalty``, so only the length limit prunes. Then
    ``proven_length`` says up to which length the first translation is the best.

    Args:
        settings: the options of the beam search: its scores, *min_len* and *nbest* are used.
        max_len: maximum number of tokens, EOS not counted.
        node_limit: number of prefixes after which to give up.
    """

    def __init__(self, settings: SearchSettings, max_len: int, node_limit: int):
        self.nbest = settings.nbest
        self.max_len = max_len
        self.min_len = settings.min_len
        self.node_limit = node_limit
        self.score_bound = settings.score_bound(max_len)

    def search(
        self,
        next_tokens: NextTokens,
        incumbents: Sequence[Translation] = (),
        start: tuple[int, ...] = (),
    ) -> ExactResult:
        """Search the translations of one sentence.

        Args:
            next_tokens: the model.
            incumbents: known translations; the result is never worse than these.
            start: tokens that every translation begins with, not more than *max_len*; an EOS among
                them ends all of them. One of probability 0 has score 0.
        """
        result = ExactResult()
        best, frontier = BestTranslations(self.nbest), Frontier()
        for translation in incumbents:
            result.exact &= best.offer(translation)
        root = self._root(next_tokens, start)
        nodes = [root]
        if root.tokens[-1:] == (next_tokens.eos,):
            best.offer(self._translation(root))
            nodes = []
        while nodes:
            result.nodes += len(nodes)
            rows = next_tokens.log_probs([node.tokens for node in nodes]).double().cpu().numpy()
            for node, row in zip(nodes, rows, strict=True):
                result.exact &= self._expand(node, row, next_tokens.eos, frontier, best)
            remaining = self.node_limit - result.nodes
            frontier.shrink(remaining)
            nodes = self._next_nodes(frontier, min(BATCH, remaining), best, result)
        self._conclude(frontier, best, result)
        return result

    def _root(self, next_tokens: NextTokens, start: tuple[int, ...]) -> Prefix:
        """Return the prefix that all translations share."""
        if next_tokens.eos in start:
            start = start[: start.index(next_tokens.eos) + 1]
        if not start:
            return Prefix((), ())
        rows = next_tokens.log_probs([start[:length] for length in range(len(start))])
        log_probs = rows[range(len(start)), start]
        log_probs = log_probs.masked_fill(log_probs.isneginf(), 0.0).tolist()
        return Prefix(start, tuple(log_probs), sum(log_probs))

    def _next_nodes(
        self, frontier: Frontier, width: int, best: BestTranslations, result: ExactResult
    ) -> list[Prefix]:
        """Take up to *width* prefixes that can still become one of the best."""
        nodes: list[Prefix] = []
        while frontier and len(nodes) < width:
            if self._bound(*frontier.first()) > best.threshold:
                nodes.append(frontier.pop())
            else:
                frontier.drop()
                result.exact = False
        return nodes

    def _expand(
        self, node: Prefix, row: np.ndarray, eos: int, frontier: Frontier, best: BestTranslations
    ) -> bool:
        """Finish a prefix if it can end, and add its continuations to the frontier; return whether
        nothing was left out."""
        length, complete = len(node.tokens), True
        if row[eos] > -math.inf and length >= self.min_len:
            complete = best.offer(self._translation(node.longer(eos, float(row[eos]))))
        row[eos] = -math.inf
        (possible,) = (row > -math.inf).nonzero()
        if length >= self.max_len:
            return complete and not len(possible)
        useful = self.score_bound.unfinished(node.total + row[possible], length) > best.threshold
        frontier.add(node, possible[useful], row[possible[useful]])
        return complete and bool(useful.all())

    def _translation(self, node: Prefix) -> Translation:
        final = float(self.score_bound.finished(np.float64(node.total), len(node.tokens) - 1))
        return Translation(final, node.tokens, node.log_probs)

    def _conclude(self, frontier: Frontier, best: BestTranslations, result: ExactResult) -> None:
        """Enter into the result what is proven, given what is left on the frontier."""
        result.translations = best.sorted()
        first = result.translations[0].score if result.translations else -math.inf
        left = frontier.remaining()
        bounds = [self._bound(*prefix) for prefix in left]
        result.exact &= bool(result.translations) and not left
        result.bound = max((bound for bound in bounds if bound > best.threshold), default=-math.inf)
        result.optimal = bool(result.translations) and max(bounds, default=-math.inf) <= first
        better = [prefix for prefix, bound in zip(left, bounds, strict=True) if bound > first]
        lengths = [self._proven_length(*prefix, first) for prefix in better]
        result.proven_length = min([*lengths, self.max_len + 1])

    def _proven_length(self, total: float, length: int, first: float) -> int:
        """Return the length up to which no continuation of a prefix is better than *first*."""
        penalty = self.score_bound.len_penalty
        if not self.score_bound.holds or penalty is None or penalty <= 0 or first == -math.inf:
            return length  # its continuations have at least one token more
        # total / n ** penalty > first, both negative
        reach = (min(total + ROUNDING, 0.0) / first) ** (1 / penalty)
        return max(length, math.floor(reach - 1e-9))

    def _bound(self, total: float, length: int) -> float:
        """Return the best final score that a prefix of this log-probability and length can have."""
        return float(self.score_bound.unfinished(np.float64(total), length - 1))


class ExactSequenceGenerator(nn.Module):
    """A beam search followed by :class:`ExactSearch`, with the interface of ``SequenceGenerator``.

    The translations of the beam are the incumbents: the result is never worse, and equals them if
    *node_limit* ends the search before it finds better ones.

    Each hypothesis has ``exact`` and ``optimal`` as in ``SparseSequenceGenerator``, and ``bound``,
    ``proven_length`` and ``nodes`` as in :class:`ExactResult`. If neither search finds a complete
    translation, a sentence has the incomplete hypothesis of the beam.

    Args:
        beam: the beam search, which provides the models, limits, scores and *nbest*.
        node_limit: number of prefixes of a sentence after which to give up.

    Raises:
        ValueError: the beam search has options that the exact search would ignore.
    """

    def __init__(self, beam: SparseSequenceGenerator, node_limit: int = 10_000):
        super().__init__()
        options = (beam.token_indices_to_suppress, beam.repeat_ngram_blocker, beam.lm_model)
        is_plain = type(beam.search.strategy) is BeamSearchStrategy and not beam.match_source_len
        is_plain &= all(option is None for option in options) and beam.unk_penalty == 0
        if not is_plain or beam.is_random:
            raise ValueError(
                "--exact-search goes with plain beam search only: without tokens that are "
                "suppressed or penalised, a function that allows tokens, a language model, and "
                "--retain-dropout"
            )
        self.beam = beam
        self.models = beam.model.models
        self.tgt_dict, self.eos = beam.tgt_dict, beam.eos
        self.symbols_to_strip_from_output = beam.symbols_to_strip_from_output
        self.node_limit = node_limit

    @torch.no_grad()
    def generate(
        self,
        models,
        sample: dict[str, Any],
        prefix_tokens=None,
        constraints=None,
        bos_token: Optional[int] = None,
    ) -> list[list[dict[str, Any]]]:
        """Translate a batch, one sentence after another; *models* is ignored, as in fairseq."""
        if constraints is not None:
            raise ValueError("--exact-search does not go with --constraints")
        net_input = sample["net_input"]
        found = self.beam.generate(models, sample, prefix_tokens=prefix_tokens, bos_token=bos_token)
        ends = (self.beam.pad, self.eos, self.eos if bos_token is None else bos_token)
        encoder_outs = [model.encoder.forward_torchscript(net_input) for model in self.models]
        settings, limits = self.beam.settings(), self.beam.length_limits(net_input).tolist()
        results = []
        for row, (hypotheses, max_len) in enumerate(zip(found, limits, strict=True)):
            search = ExactSearch(settings, max_len, self.node_limit)
            start = () if prefix_tokens is None else self._start(prefix_tokens[row])[:max_len]
            next_tokens = NextTokens.of_sentence(list(self.models), encoder_outs, row, *ends)
            results.append(self._improve(search, hypotheses, next_tokens, start))
        return results

    def _start(self, prefix: Tensor) -> tuple[int, ...]:
        return tuple(prefix[prefix != self.tgt_dict.pad()].tolist())

    def _improve(
        self, search: ExactSearch, hypotheses: list[dict], next_tokens: NextTokens, start: tuple
    ) -> list[dict[str, Any]]:
        """Return the hypotheses of a sentence, none worse than those of the beam."""
        incomplete = hypotheses[0].get("incomplete", False)
        known = {} if incomplete else {tuple(h["tokens"].tolist()): h for h in hypotheses}
        incumbents = [
            Translation(h["score"].item(), tokens, tuple(h["positional_scores"].tolist()))
            for tokens, h in known.items()
        ]
        if hypotheses[0]["exact"] or (hypotheses[0]["optimal"] and search.nbest == 1):
            # The beam search has already proven its result.
            best = hypotheses[: search.nbest]
            exact = hypotheses[0]["exact"] and len(hypotheses) <= search.nbest
            result = ExactResult(exact=exact, proven_length=search.max_len + 1)
        else:
            result = search.search(next_tokens, incumbents, start)
            device = hypotheses[0]["tokens"].device
            best = [known.get(x.tokens) or _hypothesis(x, device) for x in result.translations]
        marks = {name: True for name in ("impossible_prefix",) if name in hypotheses[0]}
        for hypothesis in best or hypotheses:
            hypothesis.update(
                marks,
                exact=result.exact,
                optimal=result.optimal,
                bound=result.bound,
                proven_length=result.proven_length,
                nodes=result.nodes,
            )
        return best or hypotheses


def _hypothesis(found: Translation, device: torch.device) -> dict[str, Any]:
    """Return a translation in the form of ``SequenceGenerator``."""
    return {
        "tokens": torch.tensor(found.tokens, device=device),
        "score": torch.tensor(found.score, device=device),
        "attention": torch.empty(0),
        "alignment": torch.empty(0),
        "positional_scores": torch.tensor(found.log_probs, device=device),
    }
