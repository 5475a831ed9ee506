"""Word links from attention that can be null."""

from typing import Any

from fairseq import utils
from fairseq.sequence_scorer import SequenceScorer
from torch import Tensor


def extract_hard_alignment(
    attention: Tensor, source: Tensor, target: Tensor, pad: int, eos: int
) -> list[tuple[int, int]]:
    """Link each target token to the source token that it attends to most, if it attends to any.

    Stock ``utils.extract_hard_alignment`` takes the maximum of a row of zeros as well, and so links
    a token that attends to nothing with the first source token.

    Args:
        attention: ``[target length, source length]``.
        source: token indices, with padding and EOS, which are linked to nothing.
        target: token indices, likewise.

    Returns:
        (source, target) positions, counted from 0 without padding and EOS.
    """
    links = utils.extract_hard_alignment(attention, source, target, pad, eos)
    if not links:
        return links
    # Stock gives one link to each of these target tokens, in this order. The attention of a batch
    # can be shorter than its padded targets.
    words = ((target != pad) & (target != eos)).nonzero().squeeze(-1)
    is_source_word = (source != pad) & (source != eos)
    attends = (attention[words][:, is_source_word] > 0).any(-1).tolist()
    return [link for link, attended in zip(links, attends, strict=True) if attended]


class SparseSequenceScorer(SequenceScorer):
    """Stock's scorer of ``--score-reference``, which links nothing where attention is null."""

    def generate(self, models, sample: dict[str, Any], **kwargs) -> list[list[dict[str, Any]]]:
        hypotheses = super().generate(models, sample, **kwargs)
        for row, (hypothesis,) in enumerate(hypotheses):
            if hypothesis["alignment"] is not None:
                source, target = sample["net_input"]["src_tokens"][row], sample["target"][row]
                hypothesis["alignment"] = extract_hard_alignment(
                    hypothesis["attention"], source, target, self.pad, self.eos
                )
        return hypotheses
