# 1.5-entmax output, with its loss. S2S; SUE, Table 1.
VARIANT_FLAGS=(
  --criterion entmax_loss --label-smoothing "$LABEL_SMOOTHING"
  --output-transform entmax15
)
source "$EXAMPLES/variants/shared/algorithm.sh"
