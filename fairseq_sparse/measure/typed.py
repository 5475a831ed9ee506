"""Sentences that a user types, tokenised and split as the model's training text was."""

from __future__ import annotations

import logging
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

logger = logging.getLogger(__name__)

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

    def encode(self, text: str) -> str:
        """Return the tokens of a text, with spaces between them."""
        words = self.tokenizer.encode(" ".join(text.split()))
        return self.bpe.encode(words) if self.bpe else words

    def decode(self, pieces: str) -> str:
        """Return tokens, with spaces between them, as text."""
        return self.tokenizer.decode(self.bpe.decode(pieces) if self.bpe else pieces)


# The merges of a language are read once.
text_encoder = cache(TextEncoder)


def find_codes(data: str | Path, language: str) -> Path | None:
    """Return the file of a language's BPE merges beside the dictionaries of a folder, or None."""
    paths = [Path(data, name + end) for end in (f".{language}", "") for name in CODES]
    return next(filter(Path.is_file, paths), None)


def check_split(what: str | Path, texts: Sequence[str], dictionary: Dictionary) -> None:
    """Refuse whole words for a model of subwords or characters, to which they would be unknown.

    Args:
        what: where the texts are from, for the message.
        texts: tokens with spaces between them.

    Raises:
        AnalysisError: the dictionary has marked parts of words, and no text has, although a word is
            unknown or, with sentencepiece, which marks all words; or the dictionary has nothing
            but characters, and a text has a word.
    """
    known = dictionary.symbols[dictionary.nspecial :]
    known = [symbol for symbol in known if symbol and not symbol.startswith("madeupword")]
    words = [word for text in texts for word in text.split()]
    pieces = list(filter(MARKED_PIECE.fullmatch, known))
    refused: str | None = None
    if known and all(len(symbol) == 1 for symbol in known):
        refused = next((word for word in words if len(word) > 1 and word not in dictionary), None)
        pieces = known
    elif pieces and not any(map(MARKED_PIECE.fullmatch, words)):
        every = all(piece.startswith("\u2581") for piece in pieces)
        refused = next((word for word in words if every or word not in dictionary), None)
    if refused is not None:
        raise AnalysisError(
            f"{what} has whole words, such as {refused}, and the dictionary parts of words, such "
            f"as {pieces[0]}: give text that is split as the training text was"
        )


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
    """Return typed sentences as a data set of a translation task; log the words it does not know.

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
        pieces = [encoder.encode(text) for text in texts]
        if not all(text.split() for text in pieces):
            raise AnalysisError("a sentence is empty")
        if codes is None:
            try:
                check_split("the typed text", pieces, words)
            except AnalysisError as error:
                raise AnalysisError(
                    f"{task.cfg.data}, {language}: {error}; merges of subword-nmt beside the "
                    f"dictionary, as {CODES[0]}, split it (sentencepiece is not supported)"
                ) from None
        unknown = [word for text in pieces for word in text.split() if word not in words]
        if unknown:
            logger.warning("unknown to the models: %s", " ".join(dict.fromkeys(unknown)))
        sides.append([words.encode_line(text, add_if_not_exist=False).long() for text in pieces])
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
