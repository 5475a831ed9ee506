# Training, evaluation and sampling of the language models. The data set's file must set
# TOKENS_PER_SAMPLE, SAMPLE_BREAK_MODE and CONTEXT_WINDOW first.

TEXT=text
SCORE=measures
CHECKPOINTS=best
SOURCE_LANG=en TARGET_LANG=en # the language of the text
TASK_FLAGS=(
  --task language_modeling_sparse
  --tokens-per-sample "$TOKENS_PER_SAMPLE" --sample-break-mode "$SAMPLE_BREAK_MODE"
)
case "$CONFIG" in
  cpu)
    clip_norm=1.0
    # 400,000 parameters besides the embeddings; one to two minutes per epoch on one core.
    BATCH_TOKENS="${BATCH_TOKENS:-2048}"
    DEVICE_TOKENS="${DEVICE_TOKENS:-2048}"
    DATASET_FLAGS=(
      --arch transformer_lm_sparse --share-decoder-input-output-embed
      --decoder-layers 2 --decoder-embed-dim 128 --decoder-input-dim 128 --decoder-output-dim 128
      --decoder-ffn-embed-dim 512 --decoder-attention-heads 4
      --dropout 0.2 --lr 3e-3 --warmup-updates 200 --max-epoch "${MAX_EPOCH:-40}" --log-interval 20
    )
    ;;
  gpu)
    clip_norm=0
    # The model and the training of fairseq's own example for WikiText-103 (its
    # examples/language_model/README.md), stopped when validation does not improve.
    BATCH_TOKENS="${BATCH_TOKENS:-65536}"
    DEVICE_TOKENS="${DEVICE_TOKENS:-4096}"
    DATASET_FLAGS=(
      --arch transformer_lm_sparse --share-decoder-input-output-embed
      --dropout 0.1 --weight-decay 0.01 --fp16
      --lr 5e-4 --warmup-updates 4000 --max-update "${MAX_UPDATE:-50000}" --log-interval 100
    )
    ;;
esac
DATASET_FLAGS+=(
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm "$clip_norm"
  --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7
  --patience "${PATIENCE:-3}" --seed "${SEED:-1}"
)
EVALUATE=(--context-window "$CONTEXT_WINDOW" --max-tokens "$DEVICE_TOKENS")
# Sample without top-k or nucleus truncation, which GENERATE_FLAGS can add.
GENERATE=(--sampling --beam 1 --nbest 1 --max-len-b "${MAX_LEN:-100}" --seed "${SEED:-1}")
if (( ! ${#PROMPTS[@]} )); then
  PROMPTS=("" "" "" "" "" "" "" "" "" "") # ten texts from an empty prompt
fi
