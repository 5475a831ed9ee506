# Hyperparameters of the LSTMs that translate in S2S, section 4. Sized for one GPU with 16 GB, by
# calculation: none of the data sets that read this file has been trained on here.

DICTIONARY=separate
CHECKPOINTS=best
BATCH_SENTENCES="${BATCH_SENTENCES:-64}"
DEVICE_SENTENCES="${DEVICE_SENTENCES:-64}"
DEVICE_TOKENS="${DEVICE_TOKENS:-4000}"
# The learning rate is halved after an epoch whose validation loss is not the lowest so far; the
# best checkpoint is the one with the most validation tokens right.
DATASET_FLAGS=(
  --arch lstm_sparse_mt
  --optimizer adam --lr 1e-3 --clip-norm 5.0
  --lr-scheduler reduce_lr_on_valid_loss --lr-shrink 0.5 --lr-patience 0
  --max-update "$MAX_UPDATE" --log-interval 100
  --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric
  --seed "${SEED:-1}"
)
GENERATE=(--beam 5 --max-tokens 8000)
