# Rectified linear attention, its ablations, and other sparse attention.
TITLE="Sparse Attention with Linear Units, Table 1: attention"
DATASETS=(wmt14_en_de_32k)
SETTINGS=rela
ROWS=(
  softmax attention_sparsemax attention_entmax15 attention_relu attention_relu_rmsnorm
  rela_i rela_g rela_g_layernorm rela_g_gelu rela_g_leaky_relu rela_g_enc rela_g_dec rela_g_cross
)
COLUMNS=(
  bleu tokenized_bleu sparsity null words_per_second sentences_per_second parameters hours watt_hours
)
