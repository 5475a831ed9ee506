# Validation accuracy by the alpha of the attention and by that of the output, the other held at 1.5.
# The paper's grid cannot be read off its plot; its best output alpha is 1.33.
source "$EXAMPLES/tables/sparse_seq2seq_2.sh"
TITLE="Sparse Sequence-to-Sequence Models, Fig. 4: validation accuracy by alpha"
DATASETS=(iwslt17_de_en)
ROWS=()
alphas="1 1.17 1.33 1.5 1.67 1.83 2 2.25"
for alpha in $alphas; do ROWS+=("entmax OUTPUT_ALPHA=$alpha ATTENTION_ALPHA=1.5"); done
for alpha in $alphas; do
  if [[ "$alpha" != 1.5 ]]; then ROWS+=("entmax OUTPUT_ALPHA=1.5 ATTENTION_ALPHA=$alpha"); fi
done
COLUMNS=(valid_accuracy bleu nonzeros)
DRAW=(alphas)
