# How many source positions are attended to, and how many words have a nonzero probability at a step, on
# the validation set with the references given; De-En models of Table 2. On data sets whose recipe does
# not measure the validation set, the second table has the latter.
source "$EXAMPLES/tables/sparse_seq2seq_2.sh"
TITLE="Sparse Sequence-to-Sequence Models, Table 3: nonzeros on the validation set"
DATASETS=(iwslt17_de_en)
COLUMNS=(valid_nonzeros valid_attended bleu tokenized_bleu)
LOOK=(
  analyze output support DATA --path MODELS --names NAMES --subset valid --no-search
  --plots STEM --json STEM.support.json
)
