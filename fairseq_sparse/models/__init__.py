"""Models; importing one registers it with fairseq."""
