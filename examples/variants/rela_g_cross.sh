# ReLA-g in cross-attention alone. ReLA, Table 1.
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention-cross rela_g)
