# Speed of decoding by the length of the source, one sentence at a time, in 10 groups of equal size;
# models of Table 1. The paper states decoding one at a time for its Table 2 only.
source "$EXAMPLES/tables/rela_1.sh"
TITLE="Sparse Attention with Linear Units, Fig. 2: decoding by source length"
ROWS=(softmax attention_sparsemax attention_entmax15 rela_g)
COLUMNS=(bleu sentences_per_second)
FOLLOW_UP=(
  benchmark/decoding.py DATA --path MODELS --names NAMES --sentences 10000 --beams 0 --batches 1
  --bins 10 --bin-beam 4 --lenpen 0.6 --rounds 3 --plots STEM --json STEM.decoding.json
)
