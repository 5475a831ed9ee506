# Attended source positions and support size per step, teacher-forced on the validation set; De-En
# models of Table 2. For data sets whose recipe does not measure the validation set, the second
# table has the support size.
source "$EXAMPLES/tables/sparse_seq2seq_2.sh"
TITLE="Sparse Sequence-to-Sequence Models, Table 3: nonzeros on the validation set"
DATASETS=(iwslt17_de_en)
COLUMNS=(valid_nonzeros valid_attended bleu tokenized_bleu)
FOLLOW_UP=(
  analyze output support DATA --path MODELS --names NAMES --subset valid --no-search
  --plots STEM --json STEM.support.json
)
