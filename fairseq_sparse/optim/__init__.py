"""Learning rates; importing a module registers it with fairseq."""
