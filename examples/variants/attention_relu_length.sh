# Attention by ReLU, divided by the number of visible keys. Wortsman et al. 2023.
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention relu_length)
