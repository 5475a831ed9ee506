"""Beam search for models whose probabilities can be exactly zero."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_sparse.generation.certificate import Certificate
from fairseq_sparse.generation.repeated_ngrams import mask_repeats
from fairseq_sparse.generation.search_settings import SearchSettings
from fairseq_sparse.generation.sparse_ensemble import SparseEnsemble, spread


class Candidates(NamedTuple):
    """The best continuations of each sentence, best first, each ``[sentences, 2 * beam]``."""

    scores: np.ndarray  # cumulative; -inf if dead
    tokens: np.ndarray
    parents: np.ndarray  # index of the continued hypothesis within its sentence

    def take(self, rows: np.ndarray, columns: np.ndarray) -> Candidates:
        """Return the candidates in these columns of these rows, ``[rows, columns]``."""
        return Candidates(*(np.take_along_axis(part[rows], columns, axis=1) for part in self))


class Finished(NamedTuple):
    """A finished hypothesis."""

    tokens: np.ndarray  # with EOS
    cumulative: np.ndarray  # the score after each token
    score: float  # final
    attention: Optional[Tensor]  # [source, tokens]
    is_incomplete: bool = False


class BeamSearch:
    """Beam search over one batch of sentences; :meth:`run` performs it.

    A hypothesis is *active* while its probability is above 0 and *dead* afterwards. The models are
    run on active hypotheses only. The bookkeeping is in NumPy, because for a small model dozens of
    small tensors at each step would take as long as the model.

    Args:
        model: the models.
        settings: the options.
        net_input: the batch.
        limits: the maximum number of tokens of each sentence's hypotheses, EOS not counted,
            ``[batch]``.
        prefix_tokens: tokens that the hypotheses of each sentence must begin with,
            ``[batch, length]``, padded, and not longer than *limits*.
        bos_token: the first token of the decoder's input (default: EOS, as everywhere in fairseq).
        lm_model: a language model, whose scores are added.
    """

    def __init__(
        self,
        model: SparseEnsemble,
        settings: SearchSettings,
        net_input: dict[str, Any],
        limits: np.ndarray,
        prefix_tokens: Optional[Tensor] = None,
        bos_token: Optional[int] = None,
        lm_model: Optional[nn.Module] = None,
    ):
        self.model, self.lm_model, self.settings = model, lm_model, settings
        self.beam, self.pad, self.eos = settings.beam, settings.pad, settings.eos
        source = source_of(net_input)
        self.device, batch = source.device, len(source)
        self.limits, self.max_len = limits, int(limits.max())
        if prefix_tokens is None:
            prefix_tokens = source.new_empty((batch, 0), dtype=torch.long)
        self.prefix_tokens = prefix_tokens.numpy(force=True)  # [batch, length]
        # Sentences whose prefix has a token of probability 0.
        self.is_impossible = np.zeros(batch, dtype=bool)
        self.score_bound = settings.score_bound(limits)
        self.certificate = Certificate(self.score_bound, batch, self.beam, settings.add_up_mass)
        # First step from which the next-token probabilities are known to sum to 1.
        self.sums_to_one_from = max(settings.sums_to_one_from, self.prefix_tokens.shape[1])
        self.finished: list[list[Finished]] = [[] for _ in range(batch)]
        # Batch indices of the active sentences, and the final score that a hypothesis of each must
        # exceed to be among its nbest best: [sentences].
        self.sentences = np.arange(batch)
        self.targets = np.full(batch, -np.inf, dtype=np.float32)
        # Scores of their hypotheses, 1 per sentence at first, then `beam`: [sentences, hypotheses].
        self.scores = np.zeros((batch, 1), dtype=np.float32)  # cumulative; -inf if dead
        # The same hypotheses in one dimension, sentence by sentence: [hypotheses, ...].
        self.tokens = np.full((batch, self.max_len + 2), self.pad)
        self.tokens[:, 0] = self.eos if bos_token is None else bos_token
        self.cumulative = np.zeros((batch, self.max_len + 1), dtype=np.float32)
        self.attention: Optional[Tensor] = None  # [hypotheses, source, tokens]
        # The state of the models, with a row for each active hypothesis.
        self.decoder_rows = self.model.encode(net_input, batch, self.device)
        self.row = np.arange(batch)

    def run(self) -> list[list[dict[str, Any]]]:
        """Decode the batch.

        In the shapes, ``sentences`` is the number of active sentences, each with ``beam``
        hypotheses (1 at the first step), and ``hypotheses`` is the product of the two.

        Returns:
            the hypotheses of each sentence, best first, in the form of ``SequenceGenerator`` and
            with what is proven about them (see :class:`SparseSequenceGenerator`)
        """
        for step in range(self.max_len + 1):
            # (1) Run the models, and the language model if there is one, on active hypotheses. A
            # dead one gets -inf for every token.
            log_probs = self._next_log_probs(step)  # [sentences, beam, vocabulary]

            # (2) Mask the tokens that must not come next: all but the next one of a prefix, and all
            # but EOS in the sentences that have reached their limit.
            forced = self._forced(step)  # [sentences]
            self._mask(step, forced, log_probs)
            self._mask_at_limit(step, log_probs)

            # (3) Choose the best continuations of each sentence as its candidates.
            candidates = self._candidates(step, log_probs)  # [sentences, 2 * beam]

            # (4) Sort them: of the first `beam`, those with EOS finish a hypothesis; the first
            # `beam` of the others continue one. All masks are [sentences, 2 * beam].
            is_active = candidates.scores > -np.inf
            is_eos = is_active & (candidates.tokens == self.eos)
            if self.settings.continues_prompts:  # whose EOS ends nothing
                is_eos &= (forced == self.pad)[:, None]
            finishing, continuing = is_eos.copy(), is_active & ~is_eos
            finishing[:, self.beam :] = False
            continuing &= continuing.cumsum(axis=1) <= self.beam
            self.certificate.record(self.sentences, candidates.scores, finishing, continuing)

            # (5) Enter the finished hypotheses into the lists of their sentences.
            is_full = self._finish(step, candidates, finishing)  # [sentences]

            # (6) End a sentence if its list is full, or if no hypothesis continues or can become
            # one of the nbest best. If its list is empty, it gets its best prefix.
            is_done = is_full | ~continuing.any(axis=1)
            if (self.targets > -np.inf).any():
                is_done |= self.certificate.active_bounds() <= self.targets
            for row in np.flatnonzero(is_done):
                if not self.finished[self.sentences[row]]:
                    self._finish_best_prefix(step, row)
            if is_done.all():
                break

            # (7) Continue the others, each with `beam` candidates, dead ones if need be.
            self._continue(step, candidates, is_eos, np.flatnonzero(~is_done))

        # (8) Sort the finished hypotheses, and add what the certificate proves about them.
        return self._hypotheses()

    def _next_log_probs(self, step: int) -> Tensor:
        """Return the scores of the next token, ``[sentences, beam, vocabulary]``; keep the
        attention."""
        scores = self.scores.ravel()
        active = np.flatnonzero(scores > -np.inf)
        index, number = self.row[active], np.arange(len(active))
        if len(index) != len(self.decoder_rows.sentence) or (index != number).any():
            self.model.select(self.decoder_rows, self._tensor(index))
        self.row[active] = number
        tokens = self._tensor(self.tokens[active, : step + 1])
        log_probs, attention = self.model.next_log_probs(tokens, self.decoder_rows)
        if self.lm_model is not None:
            output = self.lm_model(tokens)
            lm_log_probs = self.lm_model.get_normalized_probs(output, log_probs=True, sample=None)
            log_probs += self.settings.lm_weight * lm_log_probs[:, -1]
        broken = log_probs.sum(dim=1).isnan().numpy(force=True)
        self.certificate.record_unknown(self.sentences[active[broken] // self.scores.shape[1]])
        if len(active) < len(scores):
            rows = self._tensor(active)
            log_probs = spread(log_probs, rows, len(scores), -math.inf)
            attention = None if attention is None else spread(attention, rows, len(scores), 0.0)
        if attention is not None:
            before = [] if self.attention is None else [self.attention]
            self.attention = torch.cat([*before, attention.float().unsqueeze(2)], dim=2)
        log_probs = log_probs.nan_to_num_(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
        return log_probs.view(*self.scores.shape, -1)

    def _mask(self, step: int, forced: np.ndarray, log_probs: Tensor) -> None:
        """Mask the forbidden tokens in place, and subtract the penalty for unknown tokens."""
        settings = self.settings
        if settings.unk_penalty != 0:
            log_probs[:, :, settings.unk] -= settings.unk_penalty
        impossible = settings.mask_next(step, forced, log_probs)
        self.is_impossible[self.sentences[impossible]] = True
        if settings.no_repeat_ngram_size > 0:
            is_forced = (forced != self.pad).repeat(self.scores.shape[1])
            tokens, rows = self.tokens[:, : step + 1], log_probs.view(len(is_forced), -1)
            mask_repeats(settings.no_repeat_ngram_size, tokens, rows, is_forced)
        self.certificate.record_padding(self.sentences, log_probs[:, :, self.pad], self.scores)
        log_probs[:, :, self.pad] = -math.inf

    def _forced(self, step: int) -> np.ndarray:
        """Return the next token of each sentence's prefix, padding behind it, ``[sentences]``."""
        if step >= self.prefix_tokens.shape[1]:
            return np.full(len(self.sentences), self.pad)
        return self.prefix_tokens[self.sentences, step]

    def _mask_at_limit(self, step: int, log_probs: Tensor) -> None:
        """Mask all tokens but EOS in the sentences that have reached their limit, in place."""
        rows = np.flatnonzero(self.limits[self.sentences] == step)
        if len(rows) > 0:
            row = self._tensor(rows)
            cut = log_probs[row]
            log_probs[row] = -math.inf
            log_probs[row, :, self.eos] = cut[:, :, self.eos]
            cut[:, :, self.eos] = -math.inf
            prefix_scores = self._tensor(self.scores[rows])
            self.certificate.record_cut(self.sentences[rows], cut, prefix_scores)

    def _candidates(self, step: int, log_probs: Tensor) -> Candidates:
        """Return the best continuations of each sentence; *log_probs* is changed in place."""
        prefix_scores = self._tensor(self.scores)
        if step < self.sums_to_one_from:
            self.certificate.record_total(self.sentences, log_probs, prefix_scores)
        vocabulary = log_probs.size(2)
        scores = log_probs.add_(prefix_scores.unsqueeze(2)).flatten(1)
        count = 2 * self.beam
        best, places = scores.topk(min(count, scores.size(1) - 1), dim=1)
        if best.size(1) < count:
            missing = (0, count - best.size(1))
            best, places = F.pad(best, missing, value=-math.inf), F.pad(places, missing)
        places = places.numpy(force=True)
        return Candidates(best.numpy(force=True), places % vocabulary, places // vocabulary)

    def _finish(self, step: int, candidates: Candidates, finishing: np.ndarray) -> np.ndarray:
        """Enter the hypotheses that end into the lists of their sentences; return which lists are
        full, ``[sentences]``."""
        is_full = np.zeros(len(finishing), dtype=bool)
        if not finishing.any():
            return is_full
        finals = self.score_bound.finished(candidates.scores, step)
        for row in np.flatnonzero(finishing.any(axis=1)):
            sentence, columns = int(self.sentences[row]), np.flatnonzero(finishing[row])
            found = self.finished[sentence]
            room = self.beam - len(found)
            for column in columns[:room]:
                parent, score = candidates.parents[row, column], candidates.scores[row, column]
                found.append(self._ended(step, row, parent, score, finals[row, column]))
            if len(columns) > room:
                unlisted = candidates.scores[row, columns[room:]]
                self.certificate.record_unlisted(sentence, unlisted)
            if len(found) >= self.settings.nbest:
                scores = sorted((each.score for each in found), reverse=True)
                self.targets[row] = scores[self.settings.nbest - 1]
            is_full[row] = len(found) == self.beam
        return is_full

    def _finish_best_prefix(self, step: int, row: int) -> None:
        """End the best active prefix of a sentence with an EOS that does not change its score."""
        best = int(self.scores[row].argmax())
        score = self.scores[row, best]
        ended = self._ended(step, row, best, score, self.score_bound.finished(score, step))
        self.finished[self.sentences[row]].append(ended._replace(is_incomplete=True))

    def _ended(
        self, step: int, row: int, parent: int, score: np.floating, final: np.floating
    ) -> Finished:
        """Return a hypothesis of a sentence, ended by EOS at this step."""
        number = row * self.scores.shape[1] + parent
        tokens = np.append(self.tokens[number, 1 : step + 1], self.eos)
        cumulative = np.append(self.cumulative[number, :step], score)
        attention = None if self.attention is None else self.attention[number].clone()
        return Finished(tokens, cumulative, float(final), attention)

    def _continue(
        self, step: int, candidates: Candidates, is_eos: np.ndarray, rows: np.ndarray
    ) -> None:
        """Keep only these sentences, and for each the first ``beam`` candidates other than EOS."""
        columns = is_eos[rows].argsort(axis=1, kind="stable")[:, : self.beam]
        chosen = candidates.take(rows, columns)  # [sentences, beam]
        parents = (rows[:, None] * self.scores.shape[1] + chosen.parents).ravel()  # [hypotheses]
        self.sentences, self.targets = self.sentences[rows], self.targets[rows]
        self.scores, self.row = chosen.scores, self.row[parents]
        self.tokens = self.tokens[parents]
        self.tokens[:, step + 1] = chosen.tokens.ravel()
        self.cumulative = self.cumulative[parents].astype(chosen.scores.dtype, copy=False)
        self.cumulative[:, step] = chosen.scores.ravel()
        if self.attention is not None:
            self.attention = self.attention[self._tensor(parents)]

    def _hypotheses(self) -> list[list[dict[str, Any]]]:
        """Return the lists of finished hypotheses, on the models' device."""
        for found in self.finished:
            found.sort(key=lambda each: -each.score)
        every = [each for found in self.finished for each in found]
        dtype = every[0].cumulative.dtype
        tokens = np.full((len(every), self.max_len + 1), self.pad)
        cumulative = np.zeros((len(every), self.max_len + 1), dtype)
        for row, each in enumerate(every):
            tokens[row, : len(each.tokens)] = each.tokens
            cumulative[row, : len(each.tokens)] = each.cumulative
        positional = np.diff(cumulative, axis=1, prepend=dtype.type(0))
        finals = np.array([each.score for each in every], dtype)
        rows = zip(every, *map(self._tensor, (tokens, finals, positional)), strict=True)
        verdicts = zip(*self.certificate.verdicts(), strict=True)
        lists = []
        for found, is_impossible, (is_exact, bound, mass, steps) in zip(
            self.finished, self.is_impossible, verdicts, strict=True
        ):
            is_complete = not found[0].is_incomplete
            proven = {
                "exact": bool(is_complete and is_exact),
                "optimal": bool(is_complete and (is_exact or bound <= found[0].score)),
                "dropped_mass": float(mass),
                "steps": int(steps),
            }
            if is_impossible:
                proven["impossible_prefix"] = True
            lists.append([{**_as_fairseq(*next(rows)), **proven} for _ in found])
        return lists

    def _tensor(self, array: np.ndarray) -> Tensor:
        """Return an array as a tensor on the models' device."""
        return torch.from_numpy(array).to(self.device)


def source_of(net_input: dict[str, Any]) -> Tensor:
    """Return the source, text or speech, ``[batch, length, ...]``."""
    for name in ("src_tokens", "source", "features"):
        if name in net_input:
            return net_input[name]
    raise ValueError(f"expected src_tokens or source in net input, got {sorted(net_input)}")


def source_lengths(net_input: dict[str, Any], pad: int) -> np.ndarray:
    """Return the length of each source without its padding, ``[batch]``."""
    source, mask = source_of(net_input), net_input.get("padding_mask")
    if "src_lengths" in net_input:
        lengths = net_input["src_lengths"]
    elif mask is not None:
        lengths = mask.logical_not().sum(dim=1)
    elif source.is_floating_point():
        return np.full(len(source), source.size(1))
    else:
        lengths = source.ne(pad).sum(dim=1)
    return lengths.numpy(force=True)


def _as_fairseq(ended: Finished, tokens: Tensor, score: Tensor, positional: Tensor) -> dict:
    """Return a hypothesis in the form of ``SequenceGenerator``."""
    length = len(ended.tokens)
    hypothesis = {
        "tokens": tokens[:length],
        "score": score,
        "attention": torch.empty(0) if ended.attention is None else ended.attention,
        "alignment": torch.empty(0),
        "positional_scores": positional[:length],
    }
    if ended.is_incomplete:
        hypothesis["incomplete"] = True
    return hypothesis
