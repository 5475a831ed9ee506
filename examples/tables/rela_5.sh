# Alignment error rates on the gold set of RWTH Aachen, which GOLD_SET names; runs of Table 1.
source "$EXAMPLES/tables/rela_1.sh"
TITLE="Sparse Attention with Linear Units, Table 5 and Fig. 4: alignment error rate"
ROWS=(softmax attention_sparsemax attention_entmax15 rela_g)
COLUMNS=(bleu)
FOLLOW_UP=(
  gold_alignment_table.py GOLD --prepared PREPARED --path MODELS --names NAMES --output STEM-aer
)
FOLLOW_UP_SEEDS=all
SHOW="Table 5"
