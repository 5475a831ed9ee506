# Softpick attention, softmax output. Zuhri et al. 2025.
source "$EXAMPLES/variants/softmax.sh"
VARIANT_FLAGS+=(--attention softpick)
