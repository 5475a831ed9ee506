# 1.5-entmax output over the 100 largest logits, as in the experiments of S2S and SUE.
VARIANT_FLAGS=(
  --criterion entmax_loss --label-smoothing "$LABEL_SMOOTHING"
  --output-transform entmax15 --output-topk 100
)
