# The contribution of each part of ReLA-g: runs of Table 1, compared with ReLA-g.
source "$EXAMPLES/tables/rela_1.sh"
TITLE="Sparse Attention with Linear Units: ablation of ReLA-g"
ROWS=(
  rela_g rela_i attention_relu_rmsnorm attention_relu rela_g_layernorm rela_g_gelu
  rela_g_leaky_relu rela_g_enc rela_g_dec rela_g_cross
)
COLUMNS=(bleu sparsity null parameters)
