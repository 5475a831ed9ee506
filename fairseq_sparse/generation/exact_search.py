"""Search that finds the best translation of a sparse model, and proves it."""

import heapq
import math
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np
import torch
from fairseq.data.data_utils import collate_tokens
from torch import Tensor, nn

from fairseq_sparse.generation.certificate import ScoreBound
from fairseq_sparse.generation.sparse_sequence_generator import scores_are_log_probs

# Prefixes whose continuations are computed at once.
BATCH = 64


@dataclass(frozen=True)
class NextTokens:
    """The distribution of the next token after any prefix of a translation of one sentence.

    Args:
        models: an ensemble, whose probabilities are averaged.
        encoder_outs: what each encoder makes of the source sentence, a batch of one.
        pad, eos: of the target dictionary.
        temperature: divides the logits.
    """

    models: list[nn.Module]
    encoder_outs: list[Any]
    pad: int
    eos: int
    temperature: float = 1.0

    @classmethod
    def of_sentence(
        cls, models: list[nn.Module], encoder_outs: list[Any], row: int, tgt_dict, temperature=1.0
    ) -> "NextTokens":
        """Those of one sentence of a batch, *encoder_outs* being what the encoders make of all."""
        device = next((parameter.device for parameter in models[0].parameters()), None)
        index = torch.tensor([row], device=device)
        encoder_outs = [
            model.encoder.reorder_encoder_out(encoder_out, index)
            for model, encoder_out in zip(models, encoder_outs, strict=True)
        ]
        return cls(models, encoder_outs, tgt_dict.pad(), tgt_dict.eos(), temperature)

    @torch.no_grad()
    def log_probs(self, prefixes: list[tuple[int, ...]]) -> Tensor:
        """Log-probabilities ``[prefixes, vocabulary]`` of the next token; -inf for padding."""
        rows = [torch.tensor([self.eos, *prefix]) for prefix in prefixes]
        tokens = collate_tokens(rows, self.pad)  # [prefixes, longest]
        last = torch.tensor([len(prefix) for prefix in prefixes])
        device = next((parameter.device for parameter in self.models[0].parameters()), None)
        tokens, last = tokens.to(device), last.to(device)
        which = torch.zeros(len(prefixes), dtype=torch.long, device=device)
        found = []
        for model, encoder_out in zip(self.models, self.encoder_outs, strict=True):
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, which)
            logits, extra = model.decoder(tokens, encoder_out=encoder_out)
            logits = logits[torch.arange(len(prefixes), device=device), last].unsqueeze(1)
            output = (logits / self.temperature, extra)
            found.append(model.get_normalized_probs(output, log_probs=True)[:, 0])
        log_probs = found[0]
        if len(found) > 1:
            log_probs = torch.logsumexp(torch.stack(found), dim=0) - math.log(len(found))
        log_probs[:, self.pad] = -math.inf
        return log_probs


@dataclass
class ExactResult:
    """What an exact search found.

    Attributes:
        hypotheses: the best strings, best first: (final score, tokens with EOS, log-probability of
            each token).
        exact: whether they are all strings that the model can produce.
        optimal: whether it is proven that no other string within the length limits has a better
            score than the first of them.
        bound: the best final score that a string can have which was not looked at; -inf if none
            can be better than those found.
        nodes: how many prefixes were expanded.
    """

    hypotheses: list[tuple[float, tuple[int, ...], tuple[float, ...]]] = field(default_factory=list)
    exact: bool = True
    optimal: bool = True
    bound: float = -math.inf
    nodes: int = 0


class ExactSearch:
    """Depth-first search over the strings of nonzero probability.

    The model's own zeros prune the tree, and so do the strings found: a prefix that cannot become
    better than the *nbest*-th of them is left (Stahlberg & Byrne 2019). What remains after
    *node_limit* prefixes has a known bound.

    Args:
        nbest: how many of the best strings to find.
        max_len, min_len: limits of the number of tokens, EOS not counted.
        len_penalty: scores are divided by length ** len_penalty; None for log-probabilities.
        node_limit: number of prefixes after which to give up.
        bounded: whether a token's score is at most 0 (see :class:`ScoreBound`).
    """

    def __init__(
        self,
        nbest: int = 1,
        max_len: int = 200,
        min_len: int = 1,
        len_penalty: Optional[float] = None,
        node_limit: int = 10_000,
        bounded: bool = True,
    ):
        self.nbest = nbest
        self.max_len = max_len
        self.min_len = min_len
        self.node_limit = node_limit
        self.score_bound = ScoreBound(max_len, len_penalty, bounded)

    def search(self, next_tokens: NextTokens) -> ExactResult:
        """Search the translations of one sentence."""
        result = ExactResult()
        # Prefixes to expand, the most promising last: (tokens, log-probability of each).
        stack: list[tuple[tuple[int, ...], tuple[float, ...]]] = [((), ())]
        best: list[tuple[float, tuple[int, ...], tuple[float, ...]]] = []
        while stack and result.nodes < self.node_limit:
            width = min(BATCH, len(stack), self.node_limit - result.nodes)
            nodes, stack = stack[-width:], stack[:-width]
            open_nodes = [node for node in nodes if self._bound(node[1]) > self._least(best)]
            result.exact &= len(open_nodes) == len(nodes)
            if not open_nodes:
                continue
            result.nodes += len(open_nodes)
            log_probs = next_tokens.log_probs([tokens for tokens, _ in open_nodes]).cpu()
            for node, row in zip(open_nodes, log_probs, strict=True):
                stack += self._expand(node, row, next_tokens.eos, best, result)
        left = [self._bound(scores) for _, scores in stack]
        result.exact &= not left
        result.bound = max(
            (bound for bound in left if bound > self._least(best)), default=-math.inf
        )
        result.hypotheses = sorted(best, reverse=True)
        first = result.hypotheses[0][0] if best else -math.inf
        result.optimal = bool(best) and max(left, default=-math.inf) <= first
        result.exact &= bool(best)
        return result

    def _expand(self, node, row: Tensor, eos: int, best: list, result: ExactResult) -> list:
        """Finish a prefix where it can end; give its continuations, the most probable last."""
        tokens, scores = node
        possible = (row > -math.inf).nonzero().flatten()
        order = row[possible].argsort()
        continuations = []
        for token, log_p in zip(
            possible[order].tolist(), row[possible][order].tolist(), strict=True
        ):
            longer = ((*tokens, token), (*scores, log_p))
            if token != eos and len(tokens) < self.max_len:
                continuations.append(longer)
            elif token != eos:
                result.exact = False
            elif len(tokens) >= self.min_len:
                total = np.float64(math.fsum(longer[1]))
                final = float(self.score_bound.finished(total, len(tokens)))
                heapq.heappush(best, (final, *longer))
                if len(best) > self.nbest:
                    heapq.heappop(best)
                    result.exact = False
        return continuations

    def _bound(self, scores: tuple[float, ...]) -> float:
        """The best final score that a prefix with these log-probabilities can have."""
        if not scores:
            return math.inf
        total = np.float64(math.fsum(scores))
        return float(self.score_bound.unfinished(total, len(scores) - 1))

    def _least(self, best: list) -> float:
        """The score that a string must exceed to be among the best."""
        return best[0][0] if len(best) == self.nbest else -math.inf


class ExactSequenceGenerator(nn.Module):
    """:class:`ExactSearch` in the form of fairseq's ``SequenceGenerator``.

    Each hypothesis has ``exact`` and ``optimal`` as those of ``SparseSequenceGenerator``, and
    ``bound`` and ``nodes`` of :class:`ExactResult`. Where no string was found, a sentence has the
    empty hypothesis with score -inf and ``"incomplete": True``.

    Args:
        models: an ensemble.
        tgt_dict: the target dictionary.
        max_len_a, max_len_b: the limit of the length is ``a * source length + b``.
        other arguments: of :class:`ExactSearch` and :class:`NextTokens`.
    """

    def __init__(
        self,
        models: list[nn.Module],
        tgt_dict,
        nbest: int = 1,
        max_len_a: float = 0,
        max_len_b: int = 200,
        min_len: int = 1,
        len_penalty: Optional[float] = 1.0,
        temperature: float = 1.0,
        node_limit: int = 10_000,
    ):
        super().__init__()
        self.models = nn.ModuleList(models).eval()
        self.tgt_dict = tgt_dict
        self.eos = tgt_dict.eos()
        self.symbols_to_strip_from_output = {self.eos}
        self.nbest = nbest
        self.max_len_a, self.max_len_b, self.min_len = max_len_a, max_len_b, min_len
        self.len_penalty = len_penalty
        self.temperature = temperature
        self.node_limit = node_limit
        self.bounded = all(map(scores_are_log_probs, models))

    @torch.no_grad()
    def generate(
        self, models, sample: dict[str, Any], prefix_tokens=None, constraints=None, **kwargs
    ) -> list[list[dict[str, Any]]]:
        """Translate a batch, one sentence after another; *models* is not looked at, as in stock."""
        if prefix_tokens is not None or constraints is not None:
            raise ValueError("--exact-search takes neither --prefix-size nor --constraints")
        net_input = sample["net_input"]
        encoder_outs = [model.encoder.forward_torchscript(net_input) for model in self.models]
        return [
            self._translate(encoder_outs, row, net_input["src_tokens"])
            for row in range(len(net_input["src_tokens"]))
        ]

    def _translate(self, encoder_outs: list, row: int, src_tokens: Tensor) -> list[dict[str, Any]]:
        length = int(src_tokens[row].ne(self.tgt_dict.pad()).sum())
        search = ExactSearch(
            self.nbest,
            int(self.max_len_a * length + self.max_len_b),
            self.min_len,
            self.len_penalty,
            self.node_limit,
            self.bounded,
        )
        result = search.search(
            NextTokens.of_sentence(
                list(self.models), encoder_outs, row, self.tgt_dict, self.temperature
            )
        )
        found = result.hypotheses or [(-math.inf, (self.eos,), (0.0,))]
        hypotheses = []
        for score, tokens, log_probs in found:
            hypothesis = {
                "tokens": torch.tensor(tokens, device=src_tokens.device),
                "score": torch.tensor(score),
                "attention": torch.empty(0),
                "alignment": torch.empty(0),
                "positional_scores": torch.tensor(log_probs),
                "exact": result.exact,
                "optimal": result.optimal,
                "bound": result.bound,
                "nodes": result.nodes,
            }
            if not result.hypotheses:
                hypothesis["incomplete"] = True
            hypotheses.append(hypothesis)
        return hypotheses
