# 1.5-entmax output by a sort of the 100 largest logits, and of more where these do not hold the
# support: SUE's k = 100. The model is that of entmax15.
VARIANT_FLAGS=(
  --criterion entmax_loss --label-smoothing "$LABEL_SMOOTHING"
  --output-transform entmax15 --output-algorithm partial --output-topk 100
)
