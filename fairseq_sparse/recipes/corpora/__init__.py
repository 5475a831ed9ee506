"""Corpora: downloads, archives and tables become lines of text, and lines of tokens are cleaned.

Tokenising and BPE are not here: sacremoses, jieba and subword-nmt do both between the two steps.
Memory does not grow with the corpus, and files appear under their names only when complete.
"""
