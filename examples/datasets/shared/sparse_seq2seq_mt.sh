# Hyperparameters of the translation LSTMs in S2S; the file that sources this one must set
# MAX_UPDATE and VALIDATE_UPDATES first.
#
#   setting               value                             from
#   model                 LSTM, 2 + 2 layers of 500,        paper
#                         bidirectional encoder, bilinear
#                         attention, input feeding, a bias
#                         in the attentional layer
#   encoder's directions  250 units each                    not stated, ours: both together are as
#                                                           wide as the decoder
#   dropout               0.3                               paper; where is not stated: fairseq's
#   loss of a batch       mean over its tokens              not stated, ours
#   batch                 64 sentence pairs                 paper
#   optimiser             Adam, learning rate 0.001         paper; its other settings are not stated
#   schedule              halved whenever the validation    paper
#                         loss rises
#   validation            every VALIDATE_UPDATES updates    paper
#   checkpoint            the one with the most correct     paper: best validation accuracy; this
#                         validation tokens, teacher-forced measure of it is ours
#   beam                  5                                 paper
#   length penalty        1                                 not stated, ours
#   gradient clipping     5                                 not stated, ours
#   label smoothing       none                              not stated, ours
#   dictionaries          one per language                  not stated, ours
#   score                 tokenised BLEU                    paper; cased is ours
#   sparsity (Table 3)    on the validation set             paper
#
# Sized by calculation for one GPU with 16 GB: no data set that sources this file has been trained
# on here.

DICTIONARY=separate
CHECKPOINTS=best
ANALYZE_VALID=yes
BATCH_SENTENCES="${BATCH_SENTENCES:-64}"
DEVICE_SENTENCES="${DEVICE_SENTENCES:-64}"
DEVICE_TOKENS="${DEVICE_TOKENS:-4000}"
DATASET_FLAGS=(
  --arch lstm_sparse_mt
  --optimizer adam --lr 1e-3 --clip-norm 5.0
  --lr-scheduler reduce_lr_on_valid_loss --lr-shrink 0.5 --lr-patience 0 --lr-threshold 0
  --lr-compare-with previous
  --max-update "$MAX_UPDATE" --log-interval 100
  --validate-interval 1000000 --validate-interval-updates "$VALIDATE_UPDATES"
  --save-interval-updates "$VALIDATE_UPDATES" --keep-interval-updates 1
  --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric
  --seed "${SEED:-1}"
)
GENERATE=(--beam 5 --max-tokens 8000)
