# Attention by ReLU and RMSNorm, softmax output. ReLA, Table 1.
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention relu_rmsnorm)
