# Sigmoid attention. Ramapuram et al. 2024.
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention sigmoid)
