# 1.5-entmax truncated to the 100 largest logits (ours; not the papers' exact partial sort).
VARIANT_FLAGS=(
  --criterion entmax_loss --label-smoothing "$LABEL_SMOOTHING"
  --output-transform entmax15 --output-topk 100
)
