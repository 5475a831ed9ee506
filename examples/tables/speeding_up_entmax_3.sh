# Thresholds of untrained models with vocabularies of the paper's sizes, from random batches; for
# prepared data use fairseq-sparse table thresholds --data.
TITLE="Speeding Up Entmax, Table 3: the threshold before training"
COMMAND=(table thresholds --json STEM.json)
