# Attention by ReLU alone, without a norm: not expected to train. ReLA, Table 1.
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention relu)
