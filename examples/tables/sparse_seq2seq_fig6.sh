# Validation accuracy during training, by updates and by hours; De-En models of Table 2. The paper's
# third run, 1.5-entmax by bisection (Algorithm 1), is left out: here only alpha > 2 is solved so.
source "$EXAMPLES/tables/sparse_seq2seq_2.sh"
TITLE="Sparse Sequence-to-Sequence Models, Fig. 6: training by updates and by hours"
DATASETS=(iwslt17_de_en)
ROWS=()
for alpha in 1 1.5; do ROWS+=("entmax OUTPUT_ALPHA=$alpha ATTENTION_ALPHA=$alpha"); done
COLUMNS=(valid_accuracy words_per_second updates hours)
DRAW=(training)
