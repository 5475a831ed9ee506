# Validation accuracy during training, by updates and by hours; De-En models of Table 2. The output's
# threshold is found by a sort (Algorithm 2) and by bisection (Algorithm 1), as in the paper, and by
# our search; that of the attention, a few scores a query, always by ours.
source "$EXAMPLES/tables/sparse_seq2seq_2.sh"
TITLE="Sparse Sequence-to-Sequence Models, Fig. 6: training by updates and by hours"
DATASETS=(iwslt17_de_en)
ROWS=()
for alpha in 1 1.5; do ROWS+=("entmax OUTPUT_ALPHA=$alpha ATTENTION_ALPHA=$alpha"); done
for algorithm in sort bisect; do
  ROWS+=("entmax OUTPUT_ALPHA=1.5 ATTENTION_ALPHA=1.5 OUTPUT_ALGORITHM=$algorithm")
done
COLUMNS=(valid_accuracy words_per_second updates hours)
DRAW=(training)
