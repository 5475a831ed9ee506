"""Tokens of raw text: those of Moses, those that jieba finds in Chinese, or those that it has."""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Callable

from sacremoses import MosesTokenizer

Tokenize = Callable[[str], str]

# With a comma or, as in older text, a cedilla below s and t; precomposed or combining.
DIACRITICS = str.maketrans("ĂăÂâÎîȘșŞşȚțŢţ", "AaAaIiSsSsTtTt")
COMBINING = re.compile("(?<=[Aa])[\u0302\u0306]|(?<=[Ii])\u0302|(?<=[SsTt])[\u0326\u0327]")


def remove_diacritics(text: str) -> str:
    """Replace Romanian letters with diacritics: ă â î ș ț become a a i s t. Others are kept."""
    return COMBINING.sub("", text.translate(DIACRITICS))


def jieba_is_there() -> bool:
    return importlib.util.find_spec("jieba") is not None


def moses(language: str) -> Tokenize:
    """Return tokens of fairseq's own `--tokenizer moses`."""
    tokenizer = MosesTokenizer(language)
    return lambda text: tokenizer.tokenize(text, aggressive_dash_splits=True, return_str=True)


def chinese() -> Tokenize:
    """Return words that jieba finds in Chinese text, in its accurate mode."""
    import jieba

    jieba.setLogLevel(logging.WARNING)
    words = jieba.Tokenizer()
    words.initialize()
    return lambda text: present_tokens(" ".join(words.cut(text)))


def present_tokens(text: str) -> str:
    """Return what stands between spaces."""
    return " ".join(text.split())


def tokenizer(language: str, kind: str, strip_diacritics: bool) -> Tokenize:
    """Return what makes tokens, with a space between them, of a sentence.

    ``kind`` is one of ``moses``, ``jieba`` and ``space``.
    """
    if kind == "space":
        tokens = present_tokens
    else:
        tokens = chinese() if kind == "jieba" else moses(language)
    if strip_diacritics:
        return lambda text: tokens(remove_diacritics(text))
    return tokens


if __name__ == "__main__":
    raise SystemExit("corpus_tokens.py is no command: it is a part of prepare_text.py")
