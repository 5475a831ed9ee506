# ReLA-g with leaky ReLU in place of ReLU. ReLA, Table 1.
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention rela_g_leaky_relu)
