# Sigmoid attention, softmax output. Ramapuram et al. 2024.
source "$EXAMPLES/variants/softmax.sh"
VARIANT_FLAGS+=(--attention sigmoid)
