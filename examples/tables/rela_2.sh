# Size and speed of the runs of Table 1; the attention's thresholds are found by our search, in the
# paper by other code. fairseq-sparse table sizes counts the parameters and
# operations of the paper's base model without training; scripts/benchmark/attention.py measures
# speed in turns.
source "$EXAMPLES/tables/rela_1.sh"
TITLE="Sparse Attention with Linear Units, Table 2: size and speed"
ROWS=(softmax attention_sparsemax attention_entmax15 rela_i rela_g)
COLUMNS=(words_per_second sentences_per_second parameters bleu hours watt_hours)
SHOW="Table 2"
NOTE="compare the paper's decoding speeds, one sentence at a time, with the second table"
FOLLOW_UP=(
  benchmark/decoding.py DATA --path MODELS --names NAMES --sentences 10000 --beams 4 --lenpen 0.6
  --batches 1 --rounds 3 --json STEM.decoding.json
)
