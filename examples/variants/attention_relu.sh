# Attention by ReLU alone, without a norm: the paper's model did not train. ReLA, Table 1.
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention relu)
