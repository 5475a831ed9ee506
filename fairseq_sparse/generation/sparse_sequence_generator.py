"""fairseq's ``SequenceGenerator`` for models whose probabilities can be exactly zero."""

import math
from typing import Any, Optional

import torch
from fairseq.search import BeamSearch as BeamSearchStrategy
from fairseq.search import Sampling
from fairseq.sequence_generator import (
    EnsembleModel,
    SequenceGenerator,
    SequenceGeneratorWithAlignment,
)
from torch import Tensor, nn

from fairseq_sparse.generation.alignment import attended_source, extract_hard_alignment
from fairseq_sparse.generation.beam_search import BeamSearch
from fairseq_sparse.generation.certificate import ScoreBound
from fairseq_sparse.generation.normalized_scores import (
    are_normalized,
    at_temperature,
    scores_are_log_probs,
)
from fairseq_sparse.generation.repeated_ngrams import RepeatedNGramMask
from fairseq_sparse.generation.sparse_ensemble import SparseEnsemble
from fairseq_sparse.generation.sparse_search import SparseSearch

# Settings of fairseq's generator: names of both its arguments and its attributes.
_SETTINGS = ("beam_size", "max_len_a", "max_len_b", "max_len", "min_len", "normalize_scores")
_SETTINGS += ("len_penalty", "unk_penalty", "temperature", "match_source_len", "eos")
_SETTINGS += ("symbols_to_strip_from_output", "lm_model", "lm_weight")


class SparseSequenceGenerator(SequenceGenerator):
    """Generator for models with exact zeros, by beam search or fairseq's other strategies.

    Beam search is :class:`BeamSearch`. All other strategies (sampling, diverse beams, constraints)
    keep fairseq's loop, made safe by :class:`SparseSearch`.

    It takes the arguments of ``SequenceGenerator`` and returns what it returns, except that

    - a hypothesis of probability 0 never takes the place of another, and is never returned;
    - a sentence ends as soon as no hypothesis of it can be continued, or none can become one of the
      *nbest* best; it may then have fewer than ``beam`` translations;
    - a sentence for which no complete translation was found has one hypothesis: its best active
      prefix, ended by EOS (see :class:`SparseSearch`). It carries ``"incomplete": True``. Its
      score is the log-probability of the prefix, normalised by the length with EOS as usual; the
      positional score of its EOS is 0;
    - each hypothesis states what is proven about its list. ``"exact"``: no hypothesis of nonzero
      probability was dropped, so the list has all that the model can produce. ``"optimal"``: none
      within the length limits has a better score than the first of the list (always true if the
      list is exact). ``"dropped_mass"``: the probability of everything dropped, and of padding,
      which no search chooses. Only beam search of one fixed model can tell; with another strategy
      or ``--retain-dropout`` the first two are None and the mass is NaN. The mass is also NaN with
      a language model or a penalty for unknown tokens, because scores are then not those of
      probabilities;
    - ``"steps"`` is the number of search steps after which the sentence ended.

    A prefix of a language model is a prompt: an EOS in it does not end the hypothesis, and a prompt
    token of probability 0 has positional score 0 and does not affect the others. A sample that
    reaches the length limit where EOS has probability 0 is kept and is ``"incomplete"``.

    Scores are the model's own log-probabilities: zeros are not smoothed.

    Args:
        nbest: how many of the best hypotheses must be those of the full search (default: all).
        add_up_mass: whether to compute ``"dropped_mass"``, otherwise NaN. It takes time if the
            probabilities of a step are not known to sum to 1 (those of alpha-ReLU do not).
        attention: whether the hypotheses have ``"attention"``, as fairseq's do.
    """

    def __init__(
        self,
        models,
        tgt_dict,
        *args,
        nbest: Optional[int] = None,
        add_up_mass: bool = True,
        attention: bool = True,
        **kwargs,
    ):
        if isinstance(models, EnsembleModel):
            models = list(models.models)
        eos = tgt_dict.eos() if kwargs.get("eos") is None else kwargs["eos"]
        super().__init__(SparseEnsemble(models, eos, attention), tgt_dict, *args, **kwargs)
        self.model.models = nn.ModuleList(at_temperature(models, self.temperature))
        self.nbest = nbest or self.beam_size
        self.add_up_mass = add_up_mass and self.lm_model is None and self.unk_penalty == 0
        # With --retain-dropout, each step is that of another model.
        self.is_random = any(
            getattr(module, "apply_during_inference", False) for module in self.model.modules()
        )
        if self.repeat_ngram_blocker is not None:
            size = self.repeat_ngram_blocker.no_repeat_ngram_size
            self.repeat_ngram_blocker = RepeatedNGramMask(size)
        # Whether prefixes are prompts of a language model, rather than parts of translations.
        self.continues_prompts = not self.model.has_encoder()
        self.model.stands_for_eos = self.pad if self.continues_prompts else None
        self.search = SparseSearch(self.tgt_dict, self.search, self.eos, self.continues_prompts)

    @classmethod
    def from_generator(cls, generator: SequenceGenerator, **options) -> "SparseSequenceGenerator":
        """Return a generator that searches with the models and settings of another one.

        Args:
            generator: a generator of fairseq's that has not been used yet.
            options: further arguments.

        Raises:
            ValueError: a generator of this class cannot be replaced.
        """
        if type(generator) not in (SequenceGenerator, SequenceGeneratorWithAlignment):
            raise ValueError(
                f"the task decodes with {type(generator).__name__}, which cannot search models "
                "with probabilities of exactly 0; only fairseq's SequenceGenerator can be replaced"
            )
        settings = {name: getattr(generator, name) for name in _SETTINGS}
        if generator.repeat_ngram_blocker is not None:
            settings["no_repeat_ngram_size"] = generator.repeat_ngram_blocker.no_repeat_ngram_size
        models, strategy = list(generator.model.models), generator.search
        made = cls(models, generator.tgt_dict, search_strategy=strategy, **settings, **options)
        made.token_indices_to_suppress = generator.token_indices_to_suppress
        return made

    def length_limit(self, source_length: int) -> int:
        """Return the maximum number of tokens of a hypothesis in a batch, EOS not counted."""
        return min(int(self.max_len_a * source_length + self.max_len_b), self.max_len - 1)

    def score_bound(self, max_len: int) -> ScoreBound:
        """Return the bound of final scores for hypotheses of at most *max_len* tokens."""
        len_penalty = self.len_penalty if self.normalize_scores else None
        return ScoreBound(max_len, len_penalty, self._adds_log_probs() and self.unk_penalty >= 0)

    def sums_to_one_from(self) -> float:
        """Return the first step from which the probabilities of the next token sum to 1; infinity
        if there is none."""
        is_masked = self.token_indices_to_suppress is not None or self.unk_penalty != 0
        is_masked |= self.repeat_ngram_blocker is not None
        # If all weights of alpha-ReLU are 0, the normalised ones sum to 0 as well.
        is_masked |= any(map(are_normalized, self.model.models))
        return self.min_len if self._adds_log_probs() and not is_masked else math.inf

    def _adds_log_probs(self) -> bool:
        return self.lm_model is None and all(map(scores_are_log_probs, self.model.models))

    def _generate(
        self,
        sample: dict[str, Any],
        prefix_tokens: Optional[Tensor] = None,
        constraints: Optional[Tensor] = None,
        bos_token: Optional[int] = None,
    ) -> list[list[dict[str, Any]]]:
        if self.continues_prompts and prefix_tokens is not None:
            prefix_tokens = self._checked_prompts(prefix_tokens, sample["net_input"])
        is_beam_search = type(self.search.strategy) is BeamSearchStrategy
        if is_beam_search and not self.match_source_len and constraints is None:
            finalized = BeamSearch(self, sample["net_input"], prefix_tokens, bos_token).run()
            if not self.is_random:
                return finalized
        else:  # fairseq's loop, which calls is_finished and finalize_hypos
            finalized = super()._generate(sample, prefix_tokens, constraints, bos_token)
        for hypotheses in finalized:
            for hypothesis in hypotheses:
                hypothesis.update(exact=None, optimal=None, dropped_mass=math.nan)
                tokens = hypothesis["tokens"]
                tokens[tokens == self.pad] = self.eos  # see _prefix_tokens
        return finalized

    def _checked_prompts(self, prompts: Tensor, net_input: dict[str, Any]) -> Tensor:
        """Return the prompts of a batch ``[batch, length]`` without columns of padding.

        Raises:
            ValueError: a prompt is longer than an output may be.
        """
        longest = int(prompts.ne(self.pad).sum(dim=1).max()) if prompts.numel() else 0
        limit = self.length_limit(net_input["src_tokens"].size(1))
        if longest > limit:
            raise ValueError(
                f"a prompt has {longest} tokens, but --max-len-a, --max-len-b and the model allow "
                f"{limit} with the prompt: raise --max-len-b (with --max-len-a 1, it counts only "
                "the new tokens), or give shorter prompts (fairseq-generate: --prefix-size)"
            )
        return prompts[:, :longest]

    def _prefix_tokens(
        self,
        step: int,
        lprobs: Tensor,
        scores: Tensor,
        tokens: Tensor,
        prefix_tokens: Tensor,
        beam_size: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Force the tokens of a prefix in fairseq's loop.

        The loop ends a hypothesis at every EOS. So an EOS in a prompt is replaced by padding, which
        is never chosen otherwise, until :class:`SparseEnsemble` passes the tokens to the models.
        """
        if not self.continues_prompts:
            return super()._prefix_tokens(step, lprobs, scores, tokens, prefix_tokens, beam_size)
        forced = prefix_tokens[:, step].repeat_interleave(beam_size)
        rows, free = (
            mask.nonzero().squeeze(1) for mask in (forced != self.pad, forced == self.pad)
        )
        if step < self.min_len:
            lprobs[free, self.eos] = -math.inf
        if self.token_indices_to_suppress is not None:
            lprobs[free[:, None], self.token_indices_to_suppress] = -math.inf
        forced = forced[rows]
        kept = lprobs[rows, forced]
        lprobs[rows] = -math.inf
        forced = forced.masked_fill(forced == self.eos, self.pad)
        lprobs[rows, forced] = kept.masked_fill(kept.isneginf(), 0.0)
        if self.repeat_ngram_blocker is not None:
            self.repeat_ngram_blocker.forced = rows.numpy(force=True)
        return lprobs, tokens, scores

    def is_finished(self, step: int, unfin_idx: int, *args) -> bool:
        return unfin_idx in self.search.finished or super().is_finished(step, unfin_idx, *args)

    def finalize_hypos(
        self,
        step: int,
        bbsz_idx: Tensor,
        eos_scores: Tensor,
        tokens: Tensor,
        scores: Tensor,
        finalized: list[list[dict[str, Any]]],
        finished: list[bool],
        *args,
    ) -> list[int]:
        """Store finished hypotheses as fairseq does; keep a best prefix only if it is alone."""
        unfinished = [hypos for hypos, done in zip(finalized, finished, strict=True) if not done]
        rows = bbsz_idx.tolist()
        before = [len(hypos) for hypos in unfinished]
        newly_finished = super().finalize_hypos(
            step, bbsz_idx, eos_scores, tokens, scores, finalized, finished, *args
        )
        for row, hypotheses in enumerate(unfinished):
            beams = [each % self.beam_size for each in rows if each // self.beam_size == row]
            for beam, hypothesis in zip(beams, hypotheses[before[row] :], strict=False):
                if (row, beam) in self.search.truncated:
                    hypothesis["incomplete"] = True
        for row in newly_finished:
            hypotheses = unfinished[row]
            if row in self.search.incomplete:
                if len(hypotheses) > 1:
                    hypotheses.pop()
                else:
                    hypotheses[0]["incomplete"] = True
            if not isinstance(self.search.strategy, Sampling) and len(hypotheses) > 1:
                hypotheses[:] = _distinct_and_active(hypotheses)
            for hypothesis in hypotheses:
                hypothesis["steps"] = step + 1
        return newly_finished


def _distinct_and_active(hypotheses: list[dict]) -> list[dict]:
    """Return each sequence of tokens once, and none with score -inf unless there is no other.

    A forced prefix with an EOS gives all beams the same tokens, diverse groups may find the same
    tokens with different penalties, and ``--match-source-len`` gives -inf to outputs that are
    longer than their source.
    """
    best: dict[tuple[int, ...], dict] = {}
    for hypo in hypotheses:
        known = best.setdefault(tuple(hypo["tokens"].tolist()), hypo)
        if hypo["score"] > known["score"]:
            known.update(hypo)
    found = list(best.values())
    return [hypo for hypo in found if hypo["score"].item() > -math.inf] or found[:1]


class SparseSequenceGeneratorWithAlignment(SequenceGeneratorWithAlignment, SparseSequenceGenerator):
    """:class:`SparseSequenceGenerator` for ``--print-alignment``.

    A target token that attends to no source token has no link. The links of an LSTM do not depend
    on where the batch has its padding.
    """

    def __init__(self, *args, print_alignment: str = "hard", **kwargs):
        super().__init__(*args, print_alignment=print_alignment, **kwargs)
        if print_alignment == "hard":
            self.extract_alignment = extract_hard_alignment

    @classmethod
    def from_generator(
        cls, generator: SequenceGeneratorWithAlignment, **options
    ) -> SparseSequenceGenerator:
        """Return a generator that searches with the models and settings of another one."""
        left_pad_target = getattr(generator, "left_pad_target", False)
        return super().from_generator(generator, left_pad_target=left_pad_target, **options)

    @torch.no_grad()
    def generate(self, models, sample: dict[str, Any], **kwargs) -> list[list[dict[str, Any]]]:
        finalized = super().generate(models, sample, **kwargs)
        return [list({id(hypo): hypo for hypo in hypos}.values()) for hypos in finalized]

    def _prepare_batch_for_alignment(self, sample, hypothesis):
        # fairseq aligns `beam` hypotheses of each sentence: repeat the last one; generate removes
        # the copies.
        for hypos in hypothesis:
            hypos.extend(hypos[-1:] * (self.beam_size - len(hypos)))
        source, *rest = super()._prepare_batch_for_alignment(sample, hypothesis)
        return attended_source(list(self.model.models), source, self.pad), *rest
