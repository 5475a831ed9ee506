"""Sentences that a user types, tokenised and split as the model's training text was."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary, LanguagePairDataset, encoders
from torch import Tensor

from fairseq_sparse.errors import AnalysisError
from fairseq_sparse.measure.alignment.word_alignment import MARKED_PIECE
from fairseq_sparse.measure.translator import Translator

# The names of the merges beside dictionaries, if need be with the language behind them; fairseq's
# from_pretrained knows the first.
CODES = ("bpecodes", "bpe.codes", "../bpe.codes")


class TextEncoder:
    """Raw text to the tokens of a dictionary, and back, by fairseq's own tokenizers and BPE.

    Args:
        language: of the text.
        tokenizer: ``moses`` or ``space``.
        codes: the merges of subword-nmt; None for whole words.
    """

    def __init__(self, language: str, tokenizer: str = "moses", codes: Path | None = None):
        options = {"source_lang": language, "target_lang": language}
        self.tokenizer = encoders.build_tokenizer(
            Namespace(
                tokenizer=tokenizer, moses_no_dash_splits=False, moses_no_escape=False, **options
            )
        )
        self.bpe = codes and encoders.build_bpe(
            Namespace(bpe="subword_nmt", bpe_codes=str(codes), bpe_separator="@@")
        )

    def encode(self, text: str, dictionary: Dictionary) -> Tensor:
        """Return the tokens of a text, EOS at the end."""
        words = self.tokenizer.encode(" ".join(text.split()))
        pieces = self.bpe.encode(words) if self.bpe else words
        return dictionary.encode_line(pieces, add_if_not_exist=False).long()

    def decode(self, pieces: str) -> str:
        """Return tokens, with spaces between them, as text."""
        return self.tokenizer.decode(self.bpe.decode(pieces) if self.bpe else pieces)


@cache
def text_encoder(language: str, tokenizer: str, codes: Path | None) -> TextEncoder:
    """Return the encoder of a language, whose merges are read once."""
    return TextEncoder(language, tokenizer, codes)


def find_codes(data: str | Path, language: str) -> Path | None:
    """Return the file of a language's BPE merges beside the dictionaries of a folder, or None."""
    paths = [Path(data, name + end) for end in (f".{language}", "") for name in CODES]
    return next(filter(Path.is_file, paths), None)


def typed_batch(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[str] = (),
    tokenizer: str = "moses",
) -> dict[str, Any]:
    """Return a batch of fairseq's of typed sentences, on the models' device, in their order; see
    :func:`typed_pairs`.

    Raises:
        AnalysisError: as :func:`typed_pairs`, or a sentence is too long for the models.
    """
    pairs = typed_pairs(translator.task, sources, targets, tokenizer)
    translator.check_lengths(pairs.src, pairs.tgt or ())
    return translator.on_device(pairs.collater([pairs[number] for number in range(len(pairs))]))


def typed_pairs(
    task, sources: Sequence[str], targets: Sequence[str] = (), tokenizer: str = "moses"
) -> LanguagePairDataset:
    """Return typed sentences as a data set of a translation task.

    Args:
        task: with the dictionaries, and the languages in its configuration.
        sources: raw text.
        targets: their translations, or none.
        tokenizer: ``moses`` or ``space``.

    Raises:
        AnalysisError: a sentence is empty, or the merges that split its words are missing.
    """
    sides = []
    for texts, language, words in (
        (sources, task.cfg.source_lang, task.source_dictionary),
        (targets, task.cfg.target_lang, task.target_dictionary),
    ):
        codes = find_codes(task.cfg.data, language)
        encoder = text_encoder(language, tokenizer, codes)
        sides.append([encoder.encode(text, words) for text in texts])
        if any(len(tokens) < 2 for tokens in sides[-1]):
            raise AnalysisError("a sentence is empty")
        subwords = [] if codes else list(filter(MARKED_PIECE.fullmatch, words.symbols))
        if subwords and any(tokens.eq(words.unk()).any() for tokens in sides[-1]):
            raise AnalysisError(
                f"{task.cfg.data}: the dictionary of {language} has parts of words, such as "
                f"{subwords[0]}, and lacks words that were typed: to split them, put the merges of "
                f"subword-nmt beside it as {CODES[0]} (sentencepiece is not supported)"
            )
    return data_of(task, *sides)


def data_of(task: Any, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> LanguagePairDataset:
    """Return a data set of fairseq's of sentences, ``[length]`` with EOS; targets may be empty."""
    lengths = [[len(tokens) for tokens in side] for side in (sources, targets)]
    return LanguagePairDataset(
        sources,
        lengths[0],
        task.source_dictionary,
        targets or None,
        lengths[1] or None,
        task.target_dictionary,
        left_pad_source=task.cfg.left_pad_source,
        left_pad_target=task.cfg.left_pad_target,
    )
