# SUE's training (Speeding Up Entmax). The column WMT is for wmt14_en_de and wmt13_en_ru, the column
# IWSLT for iwslt14_de_en and every other data set. Model sizes and the length of training are those
# of the data set, except for the 150 epochs on IWSLT'14 (not stated, ours).
#
#   setting                IWSLT           WMT             from
#   heads                  8               8               paper
#   embeddings             three matrices  one for all     WMT: paper, though it does not give the
#                                                          75M of En-De; IWSLT: not stated, ours,
#                                                          from the 47M
#   output weights         Xavier-uniform  Xavier-uniform  paper (Lemma 3)
#   tau of 1.5-ReLU        first batch     first batch     paper
#   Adam's betas           0.9, 0.998      0.9, 0.998      paper
#   Adam's epsilon         1e-9            1e-9            not stated, ours
#   schedule               noam, factor 2  noam, factor 2  paper: peak 2 * 512^-0.5 * warm-up^-0.5
#   warm-up steps          4,000           8,000           paper
#   tokens of an update    8 x 4,096       4 x 4,096       paper; over all GPUs together: ours
#   weight decay           none            none            paper: names none
#   gradient clipping      none            none            not stated, ours
#   dropout                0.3             En-De 0.1,      paper
#                                          En-Ru 0.3
#   attention dropout      0.1             0.1             WMT: paper; IWSLT: not stated, ours
#   dropout within the     as dropout      as dropout      not stated, ours: as in OpenNMT-py, the
#     feed-forward part                                    paper's toolkit
#   layer norms            before each     before each     not stated, ours: as in OpenNMT-py
#                          part            part
#   label smoothing        none            none            paper
#   average decay          none            0.0005          paper; 1 - 0.0005 in fairseq. Starting
#                                                          the average after the warm-up is ours:
#                                                          OpenNMT-py gives the first updates less
#                                                          weight instead
#   checkpoint             best by validation BLEU         paper; one validation an epoch: ours
#   beam, length penalty   5, 1            5, 1            not stated, ours
drop_flags --share-all-embeddings --encoder-normalize-before --decoder-normalize-before
DATASET_FLAGS+=(
  --encoder-attention-heads 8 --decoder-attention-heads 8 --output-init xavier_uniform
  --encoder-normalize-before --decoder-normalize-before
  --adam-betas '(0.9, 0.998)' --adam-eps 1e-9 --weight-decay 0 --clip-norm 0
  --lr-scheduler inverse_sqrt --attention-dropout 0.1
  --eval-bleu --eval-bleu-args '{"beam": 5, "lenpen": 1.0}' --eval-bleu-remove-bpe
  --eval-bleu-detok "$TOKENIZER" --eval-bleu-detok-args "{\"target_lang\": \"$TARGET_LANG\"}"
  --best-checkpoint-metric bleu --maximize-best-checkpoint-metric
)
case "$DATASET" in
  wmt14_en_de) sue_dropout=0.1 ;;
  *) sue_dropout=0.3 ;;
esac
DATASET_FLAGS+=(--dropout "$sue_dropout" --activation-dropout "$sue_dropout")
case "$DATASET" in
  wmt14_en_de | wmt13_en_ru)
    BATCH_TOKENS=16384 # 4 x 4,096
    DATASET_FLAGS+=(
      --share-all-embeddings --warmup-updates 8000 --lr 9.8821e-4 --warmup-init-lr 1.235e-7
      --store-ema --ema-fp32 --ema-decay 0.9995 --ema-start-update 8000
    )
    EXPONENTIAL=yes
    ;;
  *)
    BATCH_TOKENS=32768 # 8 x 4,096
    DATASET_FLAGS+=(--warmup-updates 4000 --lr 1.39754e-3 --warmup-init-lr 3.494e-7)
    ;;
esac
if [[ "$DATASET" == iwslt14_de_en ]]; then DATASET_FLAGS+=(--max-epoch "${MAX_EPOCH:-150}"); fi
DEVICE_TOKENS=4096
LABEL_SMOOTHING=0
CHECKPOINTS=best
DEFAULT_TAU=data
GENERATE=(--beam 5 --lenpen 1.0 --max-tokens 8000)
