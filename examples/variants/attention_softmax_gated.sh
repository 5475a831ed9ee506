# Softmax attention with the gate of ReLA-g over the concatenated heads, softmax output: a control.
source "$EXAMPLES/variants/softmax.sh"
VARIANT_FLAGS+=(--attention softmax_gated)
