# Softmax attention with the norm and the gate of ReLA-g: a control.
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention softmax_rmsnorm_gated)
