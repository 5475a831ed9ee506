# Every form to which an inflection model gives nonzero probability, as trees, for the first items
# of the validation set. The paper shows an English item, with its best inflection model.
source "$EXAMPLES/tables/sparse_seq2seq_1.sh"
unset SWEEP_ALPHAS
TITLE="Sparse Sequence-to-Sequence Models, Fig. 1: the whole of a beam search"
DATASETS=(sigmorphon2018_high)
ROWS=("entmax OUTPUT_ALPHA=2 ATTENTION_ALPHA=1")
COLUMNS=(word_accuracy)
FOLLOW_UP=(
  analyze output tree DATA --path MODELS --names NAMES --subset valid --sentence 0-4 --plots STEM
  --json STEM.tree.json
)
