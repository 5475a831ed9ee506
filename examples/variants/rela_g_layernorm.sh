# ReLA-g with LayerNorm in place of RMSNorm. ReLA, Table 1.
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention rela_g_layernorm)
