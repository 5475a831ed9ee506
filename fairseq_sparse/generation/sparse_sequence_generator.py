"""Stock ``SequenceGenerator`` for models whose probabilities can be exactly zero."""

from typing import Any, Optional

import torch
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from torch import Tensor, nn

from fairseq_sparse.generation.alignment import extract_hard_alignment
from fairseq_sparse.generation.sparse_search import SparseSearch


def is_sparse_model(model: Optional[nn.Module]) -> bool:
    """Whether *model* can give a token probability 0: its decoder's output projection says so."""
    projection = getattr(getattr(model, "decoder", None), "output_projection", None)
    return getattr(projection, "is_sparse", False)


class SparseSequenceGenerator(SequenceGenerator):
    """Beam search (or any other strategy of fairseq's) over a model with exact zeros.

    It takes the arguments of ``SequenceGenerator`` and returns what it returns, except that

    - a hypothesis of probability 0 never takes the place of another, and is never returned;
    - a sentence ends as soon as no hypothesis of it can be continued; it may then have fewer than
      ``beam`` translations;
    - a sentence for which no complete translation was found has one hypothesis: its best live
      prefix, ended by EOS (see :class:`SparseSearch`). It carries ``"incomplete": True``. Its
      score is the log-probability of the prefix, normalised by the length with EOS as usual; the
      positional score of its EOS is 0.

    Scores are the model's own log-probabilities: nothing is added to a zero.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.search = SparseSearch(self.tgt_dict, self.search, self.eos)

    def is_finished(self, step: int, unfin_idx: int, *args) -> bool:
        return unfin_idx in self.search.exhausted or super().is_finished(step, unfin_idx, *args)

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
        """Store finished hypotheses as stock does; a prefix stays only where it is the only one."""
        sentences = [sentence for sentence, done in enumerate(finished) if not done]
        newly_finished = super().finalize_hypos(
            step, bbsz_idx, eos_scores, tokens, scores, finalized, finished, *args
        )
        for row in self.search.incomplete:
            hypotheses = finalized[sentences[row]]
            if len(hypotheses) > 1:
                hypotheses.pop()
            else:
                hypotheses[0]["incomplete"] = True
        return newly_finished


class SparseSequenceGeneratorWithAlignment(SequenceGeneratorWithAlignment, SparseSequenceGenerator):
    """:class:`SparseSequenceGenerator` for ``--print-alignment``.

    A target token that attends to no source token is linked to nothing.
    """

    def __init__(self, *args, print_alignment: str = "hard", **kwargs):
        super().__init__(*args, print_alignment=print_alignment, **kwargs)
        if print_alignment == "hard":
            self.extract_alignment = extract_hard_alignment

    @torch.no_grad()
    def generate(self, models, sample: dict[str, Any], **kwargs) -> list[list[dict[str, Any]]]:
        finalized = super().generate(models, sample, **kwargs)
        return [list({id(hypo): hypo for hypo in hypos}.values()) for hypos in finalized]

    def _prepare_batch_for_alignment(self, sample, hypothesis):
        # Stock aligns exactly beam hypotheses a sentence: repeat the last one, until generate ends.
        for hypos in hypothesis:
            hypos.extend(hypos[-1:] * (self.beam_size - len(hypos)))
        return super()._prepare_batch_for_alignment(sample, hypothesis)
