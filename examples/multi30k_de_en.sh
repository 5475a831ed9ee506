#!/usr/bin/env bash
# multi30k_de_en, entmax15, on a CPU
# Printed by: fairseq-sparse run multi30k_de_en entmax15 --cpu --print
set -euo pipefail

DATA=data/multi30k_de_en
RUN=runs/multi30k_de_en/entmax15-cpu
USER_DIR="$(python -m fairseq_sparse)"
CORES="$(getconf _NPROCESSORS_ONLN)"
export MALLOC_MMAP_MAX_=0
export MALLOC_TRIM_THRESHOLD_=4000000000
export PYTHONUNBUFFERED=1

# Text -> tokens -> subwords -> fairseq's binary format
mkdir -p "$DATA/prepared/text" "$DATA/prepared/tokens" "$DATA/prepared/tokenized" \
  "$DATA/prepared" "$DATA/prepared/bpe"
# download
fairseq-sparse corpus download \
  https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/train.de.gz \
  "$DATA/raw/train.de.gz" \
  --sha256 726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6
fairseq-sparse corpus download \
  https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/train.en.gz \
  "$DATA/raw/train.en.gz" \
  --sha256 d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f
fairseq-sparse corpus download \
  https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/val.de.gz \
  "$DATA/raw/val.de.gz" \
  --sha256 f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a
fairseq-sparse corpus download \
  https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/val.en.gz \
  "$DATA/raw/val.en.gz" \
  --sha256 14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28
fairseq-sparse corpus download \
  https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/test_2016_flickr.de.gz \
  "$DATA/raw/test_2016_flickr.de.gz" \
  --sha256 9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8
fairseq-sparse corpus download \
  https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/test_2016_flickr.en.gz \
  "$DATA/raw/test_2016_flickr.en.gz" \
  --sha256 611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9
# raw sentences, one a line
fairseq-sparse corpus extract --raw "$DATA/raw" --output-folder "$DATA/prepared/text" \
  --languages de en --take train text train.de.gz train.en.gz \
  --take valid text val.de.gz val.en.gz \
  --take test text test_2016_flickr.de.gz test_2016_flickr.en.gz
# split the sentences into tokens
sacremoses -l de -j "$CORES" -q tokenize -a < "$DATA/prepared/text/train.de" \
  > "$DATA/prepared/tokens/train.de"
sacremoses -l en -j "$CORES" -q tokenize -a < "$DATA/prepared/text/train.en" \
  > "$DATA/prepared/tokens/train.en"
sacremoses -l de -q tokenize -a < "$DATA/prepared/text/valid.de" \
  > "$DATA/prepared/tokens/valid.de"
sacremoses -l en -q tokenize -a < "$DATA/prepared/text/valid.en" \
  > "$DATA/prepared/tokens/valid.en"
sacremoses -l de -q tokenize -a < "$DATA/prepared/text/test.de" \
  > "$DATA/prepared/tokens/test.de"
sacremoses -l en -q tokenize -a < "$DATA/prepared/text/test.en" \
  > "$DATA/prepared/tokens/test.en"
# leave out empty and overlong training pairs
fairseq-sparse corpus clean --input "$DATA/prepared/tokens" \
  --output-folder "$DATA/prepared/tokenized" --languages de en
# BPE
cat "$DATA/prepared/tokenized/train.de" "$DATA/prepared/tokenized/train.en" \
  | subword-nmt learn-bpe -s 8000 > "$DATA/prepared/bpe.codes"
subword-nmt apply-bpe -c "$DATA/prepared/bpe.codes" < "$DATA/prepared/tokenized/train.de" \
  > "$DATA/prepared/bpe/train.de"
subword-nmt apply-bpe -c "$DATA/prepared/bpe.codes" < "$DATA/prepared/tokenized/train.en" \
  > "$DATA/prepared/bpe/train.en"
subword-nmt apply-bpe -c "$DATA/prepared/bpe.codes" < "$DATA/prepared/tokenized/valid.de" \
  > "$DATA/prepared/bpe/valid.de"
subword-nmt apply-bpe -c "$DATA/prepared/bpe.codes" < "$DATA/prepared/tokenized/valid.en" \
  > "$DATA/prepared/bpe/valid.en"
subword-nmt apply-bpe -c "$DATA/prepared/bpe.codes" < "$DATA/prepared/tokenized/test.de" \
  > "$DATA/prepared/bpe/test.de"
subword-nmt apply-bpe -c "$DATA/prepared/bpe.codes" < "$DATA/prepared/tokenized/test.en" \
  > "$DATA/prepared/bpe/test.en"
# the binary format of fairseq
rm -rf "$DATA/prepared/bin"
fairseq-preprocess --source-lang de --target-lang en --joined-dictionary \
  --trainpref "$DATA/prepared/bpe/train" --validpref "$DATA/prepared/bpe/valid" \
  --testpref "$DATA/prepared/bpe/test" --destdir "$DATA/prepared/bin" --workers "$CORES"

# Training; the same command again resumes it
fairseq-train "$DATA/prepared/bin" --user-dir "$USER_DIR" --save-dir "$RUN/checkpoints" \
  --task translation_sparse --source-lang de --target-lang en --keep-last-epochs 5 \
  --share-all-embeddings --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
  --lr-scheduler inverse_sqrt --warmup-init-lr 1e-7 --log-interval 50 --arch transformer_sparse \
  --encoder-layers 3 --encoder-embed-dim 128 --encoder-ffn-embed-dim 512 \
  --encoder-attention-heads 4 --encoder-normalize-before --decoder-layers 3 \
  --decoder-embed-dim 128 --decoder-ffn-embed-dim 512 --decoder-attention-heads 4 \
  --decoder-normalize-before --dropout 0.2 --lr 3e-3 --warmup-updates 400 --max-epoch 20 \
  --criterion entmax_loss --output-transform entmax15 --label-smoothing 0 --seed 1 \
  --max-tokens 2048 --update-freq 1 --log-format json --cpu --distributed-world-size 1

# The model that is used: an average of checkpoints, or the best one
mkdir -p "$RUN"
fairseq-sparse average --inputs "$RUN/checkpoints" --num-epoch-checkpoints 5 \
  --output "$RUN/average.pt"

# Decoding and scoring of the test set
fairseq-generate "$DATA/prepared/bin" --user-dir "$USER_DIR" --path "$RUN/average.pt" \
  --gen-subset test --cpu --log-format simple --num-workers 0 --task translation_sparse \
  --source-lang de --target-lang en --post-process subword_nmt --tokenizer moses --beam 5 \
  --lenpen 1.0 --max-tokens 8000 > "$RUN/generate-test.txt" 2>&1
fairseq-sparse score "$RUN/generate-test.txt" --reference "$DATA/prepared/text/test.en" \
  --tokenized-reference "$DATA/prepared/tokenized/test.en" --output "$RUN/hyp.detok.txt" \
  --json "$RUN/bleu.json"

# Word alignments from the cross-attention
fairseq-sparse align "$DATA/prepared/bin" --path "$RUN/average.pt" --subset test \
  --output-folder "$RUN/alignments" --max-tokens 2048 --cpu

# Statistics of output and attention on the references
mkdir -p "$RUN/measurements"
fairseq-validate "$DATA/prepared/bin" --user-dir "$USER_DIR" --path "$RUN/average.pt" \
  --valid-subset test --max-tokens 2048 --cpu --distributed-world-size 1 --log-format json \
  --task translation_sparse --source-lang de --target-lang en > "$RUN/validate-test.txt" 2>&1
fairseq-sparse analyze support "$DATA/prepared/bin" --path "$RUN/average.pt" --subset test \
  --no-search --max-tokens 2048 --cpu
fairseq-sparse analyze attention "$DATA/prepared/bin" --path "$RUN/average.pt" --subset test \
  --subwords subword_nmt --max-tokens 2048 --cpu
