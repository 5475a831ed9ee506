# Sparsemax output (2-entmax), with its loss. S2S.
VARIANT_FLAGS=(
  --criterion entmax_loss --label-smoothing "$LABEL_SMOOTHING"
  --output-transform sparsemax
)
source "$EXAMPLES/variants/shared/algorithm.sh"
