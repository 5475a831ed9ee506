# Attention by ReLU and RMSNorm. ReLA, Table 1.
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention relu_rmsnorm)
