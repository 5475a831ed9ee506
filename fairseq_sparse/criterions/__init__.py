"""Criterions; importing one registers it with fairseq."""
