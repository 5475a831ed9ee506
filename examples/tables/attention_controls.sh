# Does ReLA owe its results to sparsity or to its gate? Compares ReLA with softmax plus ReLA's gate
# and norm, and with later kinds of attention, all with a 1.5-entmax output.
TITLE="Rectified linear attention, its controls and successors"
DATASETS=(multi30k_de_en_short quickstart)
ROWS=(entmax15)  # with softmax attention
for attention in attention_softmax_gated attention_softmax_rmsnorm_gated rela_g rela_i \
  attention_relu_length attention_softpick attention_sigmoid attention_entmax15 \
  attention_entmax15_scaled
do
  ROWS+=("$attention OUTPUT_VARIANT=entmax15")
done
COLUMNS=(bleu chrf long_bleu aer aol sparsity null first eos hours)
