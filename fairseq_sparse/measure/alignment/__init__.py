"""Word alignments from attention: extraction, gold sets and the alignment error rate."""

# The rows of cross-attention that stand for target pieces; word_alignment.py explains them.
ALIGNMENT_KINDS = ("normal", "shifted")
# How words were split into pieces; none: not at all.
SUBWORDS = ("subword_nmt", "sentencepiece", "none")
