"""Word alignments from attention: extraction, gold sets and the alignment error rate."""
