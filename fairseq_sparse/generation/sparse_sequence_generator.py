"""fairseq's ``SequenceGenerator`` for models whose probabilities can be exactly zero."""

import copy
import math
from typing import Any, Optional

import numpy as np
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
from fairseq_sparse.generation.beam_search import BeamSearch, source_lengths
from fairseq_sparse.generation.normalized_scores import (
    are_normalized,
    at_temperature,
    scores_are_log_probs,
)
from fairseq_sparse.generation.repeated_ngrams import RepeatedNGramMask
from fairseq_sparse.generation.search_settings import SearchSettings
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

    A prefix is kept whatever its probability, up to the length limit. A token of it that has
    probability 0 has positional score 0, and the hypotheses carry ``"impossible_prefix": True``. A
    prefix of a language model is a prompt: an EOS in it does not end the hypothesis. A sample that
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
            self.repeat_ngram_blocker = RepeatedNGramMask(size, self.pad, self.eos)
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

    def length_limits(self, net_input: dict[str, Any]) -> np.ndarray:
        """Return the maximum number of tokens of each sentence's hypotheses, ``[batch]``.

        EOS is not counted. In contrast to fairseq, the limit of a sentence depends on its own
        length, not on that of its batch, and one below the minimum length is raised to it.

        Raises:
            ValueError: the minimum length exceeds the limit of any source.
        """
        most = self.max_len - 1
        if self.max_len_a <= 0:
            most = min(int(self.max_len_b), most)
        if self.min_len > most:
            raise ValueError(
                f"--min-len {self.min_len} is more than the {most} tokens that --max-len-a, "
                "--max-len-b and the model allow"
            )
        lengths = self.max_len_a * source_lengths(net_input, self.pad) + self.max_len_b
        return np.clip(lengths, self.min_len, most).astype(np.int64)

    def settings(self) -> SearchSettings:
        """Return the options of the search, and what follows from them and from the models."""
        models = self.model.models
        suppressed, ngrams = self.token_indices_to_suppress, self.repeat_ngram_blocker
        adds_log_probs = self.lm_model is None and all(map(scores_are_log_probs, models))
        return SearchSettings(
            beam=self.beam_size,
            nbest=self.nbest,
            pad=self.pad,
            unk=self.unk,
            eos=self.eos,
            min_len=self.min_len,
            len_penalty=self.len_penalty if self.normalize_scores else None,
            unk_penalty=self.unk_penalty,
            suppressed=() if suppressed is None else tuple(suppressed.tolist()),
            no_repeat_ngram_size=0 if ngrams is None else ngrams.size,
            lm_weight=self.lm_weight,
            continues_prompts=self.continues_prompts,
            add_up_mass=self.add_up_mass,
            adds_log_probs=adds_log_probs,
            # If all weights of alpha-ReLU are 0, the normalised ones sum to 0 as well.
            sums_to_one=adds_log_probs and not any(map(are_normalized, models)),
        )

    def _generate(
        self,
        sample: dict[str, Any],
        prefix_tokens: Optional[Tensor] = None,
        constraints: Optional[Tensor] = None,
        bos_token: Optional[int] = None,
    ) -> list[list[dict[str, Any]]]:
        limits = self.length_limits(sample["net_input"])
        if prefix_tokens is not None:
            prefix_tokens = self._within_limits(prefix_tokens, limits)
        is_beam_search = type(self.search.strategy) is BeamSearchStrategy
        if is_beam_search and not self.match_source_len and constraints is None:
            options = (sample["net_input"], limits, prefix_tokens, bos_token, self.lm_model)
            finalized = BeamSearch(self.model, self.settings(), *options).run()
            if not self.is_random:
                return finalized
        else:
            ends = prefix_tokens is not None and bool(prefix_tokens.eq(self.eos).any())
            if ends and self.continues_prompts and self.lm_model is not None:
                # fairseq's loop would give it the padding that stands for EOS, see _prefix_tokens.
                raise ValueError(
                    "a prompt has the end of a sentence in it, which --lm-path cannot read but in "
                    "beam search: leave out --sampling and the like, or --lm-path"
                )
            options = (prefix_tokens, constraints, bos_token)
            finalized = self._run_fairseqs_loop(limits, sample, *options)
        for hypotheses in finalized:
            for hypothesis in hypotheses:
                hypothesis.update(exact=None, optimal=None, dropped_mass=math.nan)
                tokens = hypothesis["tokens"]
                tokens[tokens == self.pad] = self.eos  # see _prefix_tokens
        return finalized

    def _run_fairseqs_loop(self, limits: np.ndarray, *args) -> list[list[dict[str, Any]]]:
        """Decode a batch in fairseq's loop, which calls this class's methods at each step.

        Args:
            limits: the maximum number of tokens of each sentence, ``[batch]``.
            args: those of ``SequenceGenerator._generate``.
        """
        loop = copy.copy(self)
        # Sentences whose prefix has a token of probability 0.
        loop.impossible = set()
        if not self.match_source_len:
            # The loop ends at the limit of the batch, the search strategy at those of sentences.
            self.search.limits = limits
            loop.max_len_a, loop.max_len_b = 0, int(limits.max())
        self.search.begin(len(limits))
        finalized = SequenceGenerator._generate(loop, *args)
        for sentence in loop.impossible:
            for hypothesis in finalized[sentence]:
                hypothesis["impossible_prefix"] = True
        return finalized

    def _within_limits(self, prefixes: Tensor, limits: np.ndarray) -> Tensor:
        """Return the prefixes of a batch ``[batch, length]``, cut at the limits of the length,
        without columns of padding.

        Raises:
            ValueError: a prompt is longer than its limit, is padded on the left, or has a token
                that the output lacks.
        """
        is_token = prefixes.ne(self.pad).numpy(force=True)
        lengths = is_token.sum(axis=1)
        if (is_token[:, 1:] > is_token[:, :-1]).any():
            raise ValueError(
                "a prefix is padded on the left: leave out --left-pad-target, with which "
                "--prefix-size takes the padding for the first tokens"
            )
        if self.continues_prompts and (lengths > limits).any():
            worst = (lengths - limits).argmax()
            remedy = "raise --max-len-b (with --max-len-a 1, it counts only the new tokens), or "
            raise ValueError(
                f"a prompt has {lengths[worst]} tokens, but --max-len-a, --max-len-b and the model "
                f"allow {limits[worst]} with the prompt: "
                f"{remedy if limits[worst] < self.max_len - 1 else ''}give shorter prompts "
                "(fairseq-generate: --prefix-size)"
            )
        if (prefixes >= len(self.tgt_dict)).any():
            raise ValueError(
                f"a prompt has a token that is not among the {len(self.tgt_dict)} of the output "
                "(--output-dictionary-size); leave it out of the prompt"
            )
        is_cut = torch.from_numpy(np.arange(prefixes.size(1)) >= limits[:, None])
        prefixes = prefixes.masked_fill(is_cut.to(prefixes.device), self.pad)
        return prefixes[:, : int(np.minimum(lengths, limits).max())]

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
        forced = prefix_tokens[:, step].numpy(force=True)
        rows = lprobs.view(len(forced), beam_size, -1)
        impossible = self.settings().mask_next(step, forced, rows)
        self.impossible |= {self.search.sentences[row] for row in impossible}
        if self.continues_prompts:
            ends = torch.from_numpy((forced == self.eos).repeat(beam_size)).to(lprobs.device)
            lprobs[ends, self.pad] = lprobs[ends, self.eos]
            lprobs[ends, self.eos] = -math.inf
        if self.repeat_ngram_blocker is not None:
            self.repeat_ngram_blocker.forced = (forced != self.pad).repeat(beam_size)
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
