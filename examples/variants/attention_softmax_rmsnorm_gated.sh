# Softmax attention with the norm and the gate of ReLA-g, softmax output: a control.
source "$EXAMPLES/variants/softmax.sh"
VARIANT_FLAGS+=(--attention softmax_rmsnorm_gated)
