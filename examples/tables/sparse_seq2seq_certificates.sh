# Shares of validation items that have all probability mass on one form, and for which beam search
# is proven exact; models of Table 1 with a sparse output.
source "$EXAMPLES/tables/sparse_seq2seq_1.sh"
unset SWEEP_ALPHAS
TITLE="Sparse Sequence-to-Sequence Models: certified beam search"
ROWS=()
for output in 1.5 2; do
  for attention in 1 1.5 2; do ROWS+=("entmax OUTPUT_ALPHA=$output ATTENTION_ALPHA=$attention"); done
done
COLUMNS=(valid_single valid_exact word_accuracy)
FOLLOW_UP=(
  analyze output support DATA --path MODELS --names NAMES --subset valid --beams 1,5
  --json STEM.support.json
)
