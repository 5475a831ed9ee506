# The training and decoding of ReLA, section 5: post-norm layers, dropout 0.1 on residuals and on
# attention weights, label smoothing 0.1, Adam with 4,000 warm-up steps to a peak of
# 512^-0.5 * 4000^-0.5, beam 4 with length penalty 0.6, the last 5 checkpoints averaged. How long to
# train stays the data set's: the paper has 300,000 updates of 25,000 tokens on WMT, and the 1,512
# updates of a configuration for a CPU end before the warm-up does. fairseq divides scores by
# length^0.6.
local flag flags=("${DATASET_FLAGS[@]}")
DATASET_FLAGS=()
for flag in "${flags[@]}"; do
  [[ "$flag" == --*coder-normalize-before ]] || DATASET_FLAGS+=("$flag")
done
DATASET_FLAGS+=(
  --dropout 0.1 --attention-dropout 0.1 --activation-dropout 0
  --adam-betas '(0.9, 0.98)' --adam-eps 1e-8 --weight-decay 0 --clip-norm 0
  --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7 --warmup-updates 4000 --lr 7e-4
)
LABEL_SMOOTHING=0.1
GENERATE=(--beam 4 --lenpen 0.6 --max-tokens 8000)
AVERAGE_LAST=5
