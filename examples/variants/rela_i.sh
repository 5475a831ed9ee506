# Rectified linear attention, ReLA-i (RMSNorm with its gain drawn uniformly). ReLA, Table 1.
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention rela_i)
