# Softpick attention. Zuhri et al. 2025.
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention softpick)
