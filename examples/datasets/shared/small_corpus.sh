# Hyperparameters for a few tens of thousands of short sentence pairs, as in Multi30k.
#
# BATCH_TOKENS is the batch of one update, whatever the number of devices;
# DEVICE_TOKENS is what one device holds at once.
case "$CONFIG" in
  cpu)
    # 2.4 million parameters, 5,040 updates on Multi30k; 35 to 70 minutes on one core. The model is
    # as narrow as that of Wu, Kong, Bi, Li, Kao: Good for Misconceived Reasons (2021).
    BATCH_TOKENS="${BATCH_TOKENS:-2048}"
    DEVICE_TOKENS="${DEVICE_TOKENS:-2048}"
    DATASET_FLAGS=(
      --arch transformer_sparse --share-all-embeddings
      --encoder-layers 3 --encoder-embed-dim 128 --encoder-ffn-embed-dim 512
      --encoder-attention-heads 4 --encoder-normalize-before
      --decoder-layers 3 --decoder-embed-dim 128 --decoder-ffn-embed-dim 512
      --decoder-attention-heads 4 --decoder-normalize-before
      --dropout 0.2
      --lr 3e-3 --warmup-updates 400 --max-epoch "${MAX_EPOCH:-20}" --log-interval 50
    )
    AVERAGE_LAST="${AVERAGE_LAST:-5}"
    ;;
  gpu)
    # 36 million parameters, 4,400 updates on Multi30k.
    BATCH_TOKENS="${BATCH_TOKENS:-4096}"
    DEVICE_TOKENS="${DEVICE_TOKENS:-4096}"
    DATASET_FLAGS=(
      --arch transformer_sparse_iwslt_de_en --share-all-embeddings
      --dropout 0.3 --weight-decay 1e-4 --fp16
      --lr 1e-3 --warmup-updates 1000 --max-epoch "${MAX_EPOCH:-40}" --log-interval 50
    )
    AVERAGE_LAST="${AVERAGE_LAST:-5}"
    ;;
esac
DATASET_FLAGS+=(
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0
  --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7
  --seed "${SEED:-1}"
)
GENERATE=(--beam 5 --lenpen 1.0 --max-tokens 8000)
