# 1.5-entmax attention with queries scaled by the number of keys, as in ASEntmax (Vasylenko et al.
# 2025).
source "$EXAMPLES/variants/shared/output.sh"
VARIANT_FLAGS+=(--attention entmax15 --attention-scale-queries)
