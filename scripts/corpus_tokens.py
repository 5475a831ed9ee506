"""Tokenisers of raw text: Moses, jieba for Chinese, or splitting at spaces."""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Callable

from sacremoses import MosesTokenizer

Tokenize = Callable[[str], str]

# s and t have a comma below or, in older text, a cedilla; precomposed or combining.
DIACRITICS = str.maketrans("ĂăÂâÎîȘșŞşȚțŢţ", "AaAaIiSsSsTtTt")
COMBINING = re.compile("(?<=[Aa])[\u0302\u0306]|(?<=[Ii])\u0302|(?<=[SsTt])[\u0326\u0327]")


def remove_diacritics(text: str) -> str:
    """Replace Romanian letters with diacritics: ă â î ș ț become a a i s t. Others are kept."""
    return COMBINING.sub("", text.translate(DIACRITICS))


def jieba_is_there() -> bool:
    return importlib.util.find_spec("jieba") is not None


def moses(language: str) -> Tokenize:
    """Return a tokeniser like fairseq's own `--tokenizer moses`."""
    tokenizer = MosesTokenizer(language)
    return lambda text: tokenizer.tokenize(text, aggressive_dash_splits=True, return_str=True)


def chinese() -> Tokenize:
    """Return a tokeniser that finds words in Chinese text, by jieba in its accurate mode."""
    import jieba

    jieba.setLogLevel(logging.WARNING)
    words = jieba.Tokenizer()
    words.initialize()
    return lambda text: present_tokens(" ".join(words.cut(text)))


def present_tokens(text: str) -> str:
    """Return the text's own tokens, with single spaces between them."""
    return " ".join(text.split())


def tokenizer(language: str, kind: str, strip_diacritics: bool) -> Tokenize:
    """Return a function that splits a sentence into tokens with a space between them.

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
    raise SystemExit("corpus_tokens.py is not a command: it is a part of prepare_text.py")
