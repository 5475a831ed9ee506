# The other words in the support at each step, teacher-forced: 1.5-entmax output, sparsemax
# attention.
source "$EXAMPLES/tables/sparse_seq2seq_2.sh"
TITLE="Sparse Sequence-to-Sequence Models, Fig. 2: alternatives at each step"
DATASETS=(iwslt17_de_en)
ROWS=("entmax OUTPUT_ALPHA=1.5 ATTENTION_ALPHA=2")
COLUMNS=(bleu nonzeros)
FOLLOW_UP=(
  analyze output alternatives DATA --path MODELS --names NAMES --sentence 0-4
  --json STEM.alternatives.json
  THEN report MODELS --data DATA --sentences 5 --output STEM.html
)
