# Softmax attention with the gate of ReLA-g over the concatenated heads: a control.
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention softmax_gated)
