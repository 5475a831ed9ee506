# Diversity of the heads (Table 6, Fig. 5), sparsity rate (Fig. 3) and null rate with the references
# and with shuffled ones (Fig. 6), between words, by layer; runs of Table 1. The paper's Table 6 has no
# row for sparsemax, and its Fig. 6 shows only ReLA-g.
source "$EXAMPLES/tables/rela_1.sh"
TITLE="Sparse Attention with Linear Units, Table 6, Fig. 3, 5 and 6: diversity, zeros, null attention"
ROWS=(softmax attention_sparsemax attention_entmax15 rela_g)
COLUMNS=(bleu sparsity null)
NOTE="means over the seeds are in the second table; the paper does not say which set it measured; \
ours is the test set"
FOLLOW_UP=(
  analyze attention DATA --path MODELS --names NAMES --subwords subword_nmt --shuffled 1
  --plots STEM-attention --json STEM.attention.json
)
FOLLOW_UP_SEEDS=all
SHOW="Table 6"
