# ReLA-g in the decoder's self-attention alone. ReLA, Table 1.
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention-dec rela_g)
