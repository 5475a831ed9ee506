#!/usr/bin/env bash
# kftt_ja_en, entmax: output 1.5, attention 1.5, on a GPU
# Printed by: fairseq-sparse run kftt_ja_en entmax --output-alpha 1.5 --attention-alpha 1.5 --gpu --print
set -euo pipefail

DATA=data/kftt_ja_en
RUN=runs/kftt_ja_en/entmax-output-1.5-attention-1.5-gpu
USER_DIR="$(python -m fairseq_sparse)"
CORES="$(getconf _NPROCESSORS_ONLN)"
export PYTHONUNBUFFERED=1

# Text -> tokens -> subwords -> fairseq's binary format
mkdir -p "$DATA/prepared/text" "$DATA/prepared/tokenized" "$DATA/prepared" "$DATA/prepared/bpe"
# download
fairseq-sparse corpus download http://www.phontron.com/kftt/download/kftt-data-1.0.tar.gz \
  "$DATA/raw/kftt-data-1.0.tar.gz"
# raw sentences, one a line
fairseq-sparse corpus extract --raw "$DATA/raw" --output-folder "$DATA/prepared/text" \
  --languages ja en \
  --take train text 'kftt-data-1.0.tar.gz!kftt-data-1.0/data/tok/kyoto-train.cln.ja' 'kftt-data-1.0.tar.gz!kftt-data-1.0/data/tok/kyoto-train.cln.en' \
  --take valid text 'kftt-data-1.0.tar.gz!kftt-data-1.0/data/tok/kyoto-dev.ja' 'kftt-data-1.0.tar.gz!kftt-data-1.0/data/tok/kyoto-dev.en' \
  --take test text 'kftt-data-1.0.tar.gz!kftt-data-1.0/data/tok/kyoto-test.ja' 'kftt-data-1.0.tar.gz!kftt-data-1.0/data/tok/kyoto-test.en'
# leave out empty and overlong training pairs
fairseq-sparse corpus clean --input "$DATA/prepared/text" \
  --output-folder "$DATA/prepared/tokenized" --languages ja en
# BPE
cat "$DATA/prepared/tokenized/train.ja" "$DATA/prepared/tokenized/train.en" \
  | subword-nmt learn-bpe -s 32000 > "$DATA/prepared/bpe.codes"
subword-nmt apply-bpe -c "$DATA/prepared/bpe.codes" < "$DATA/prepared/tokenized/train.ja" \
  > "$DATA/prepared/bpe/train.ja"
subword-nmt apply-bpe -c "$DATA/prepared/bpe.codes" < "$DATA/prepared/tokenized/train.en" \
  > "$DATA/prepared/bpe/train.en"
subword-nmt apply-bpe -c "$DATA/prepared/bpe.codes" < "$DATA/prepared/tokenized/valid.ja" \
  > "$DATA/prepared/bpe/valid.ja"
subword-nmt apply-bpe -c "$DATA/prepared/bpe.codes" < "$DATA/prepared/tokenized/valid.en" \
  > "$DATA/prepared/bpe/valid.en"
subword-nmt apply-bpe -c "$DATA/prepared/bpe.codes" < "$DATA/prepared/tokenized/test.ja" \
  > "$DATA/prepared/bpe/test.ja"
subword-nmt apply-bpe -c "$DATA/prepared/bpe.codes" < "$DATA/prepared/tokenized/test.en" \
  > "$DATA/prepared/bpe/test.en"
# the binary format of fairseq
rm -rf "$DATA/prepared/bin"
fairseq-preprocess --source-lang ja --target-lang en --trainpref "$DATA/prepared/bpe/train" \
  --validpref "$DATA/prepared/bpe/valid" --testpref "$DATA/prepared/bpe/test" \
  --destdir "$DATA/prepared/bin" --workers "$CORES"

# Training; the same command again resumes it
fairseq-train "$DATA/prepared/bin" --user-dir "$USER_DIR" --save-dir "$RUN/checkpoints" \
  --task translation_sparse --source-lang ja --target-lang en --no-epoch-checkpoints \
  --optimizer adam --lr 1e-3 --clip-norm 5.0 --lr-scheduler reduce_lr_on_valid_loss \
  --lr-shrink 0.5 --lr-patience 0 --lr-threshold 0 --lr-compare-with previous \
  --maximize-best-checkpoint-metric --encoder-dropout-in 0 --encoder-dropout-out 0 \
  --decoder-dropout-in 0 --arch lstm_sparse_mt --log-interval 100 --validate-interval 1000000 \
  --keep-interval-updates 1 --best-checkpoint-metric accuracy --max-update 100000 \
  --validate-interval-updates 10000 --save-interval-updates 10000 --criterion entmax_loss \
  --output-transform entmax15 --label-smoothing 0 --attention entmax15 --seed 1 --batch-size 64 \
  --update-freq 1 --log-format json --distributed-world-size 1

# The model that is used: an average of checkpoints, or the best one
mkdir -p "$RUN"
fairseq-sparse average --inputs "$RUN/checkpoints/checkpoint_best.pt" --output "$RUN/average.pt"

# Decoding and scoring of the test set
fairseq-generate "$DATA/prepared/bin" --user-dir "$USER_DIR" --path "$RUN/average.pt" \
  --gen-subset test --log-format simple --num-workers 0 --task translation_sparse \
  --source-lang ja --target-lang en --post-process subword_nmt --tokenizer space --beam 5 \
  --max-tokens 8000 > "$RUN/generate-test.txt" 2>&1
fairseq-sparse score "$RUN/generate-test.txt" --reference "$DATA/prepared/text/test.en" \
  --tokenized-reference "$DATA/prepared/tokenized/test.en" --output "$RUN/hyp.detok.txt" \
  --json "$RUN/bleu.json" --tokenize none

# Word alignments from the cross-attention
fairseq-sparse align "$DATA/prepared/bin" --path "$RUN/average.pt" --subset test \
  --output-folder "$RUN/alignments" --max-tokens 4000

# Statistics of output and attention on the references
mkdir -p "$RUN/measurements"
fairseq-validate "$DATA/prepared/bin" --user-dir "$USER_DIR" --path "$RUN/average.pt" \
  --valid-subset test --max-tokens 4000 --distributed-world-size 1 --log-format json \
  --task translation_sparse --source-lang ja --target-lang en > "$RUN/validate-test.txt" 2>&1
fairseq-sparse analyze support "$DATA/prepared/bin" --path "$RUN/average.pt" --subset test \
  --no-search --max-tokens 4000
fairseq-sparse analyze attention "$DATA/prepared/bin" --path "$RUN/average.pt" --subset test \
  --subwords none --max-tokens 4000
fairseq-validate "$DATA/prepared/bin" --user-dir "$USER_DIR" --path "$RUN/average.pt" \
  --valid-subset valid --max-tokens 4000 --distributed-world-size 1 --log-format json \
  --task translation_sparse --source-lang ja --target-lang en > "$RUN/validate-valid.txt" 2>&1
fairseq-sparse analyze support "$DATA/prepared/bin" --path "$RUN/average.pt" --subset valid \
  --no-search --max-tokens 4000
fairseq-sparse analyze attention "$DATA/prepared/bin" --path "$RUN/average.pt" --subset valid \
  --subwords none --max-tokens 4000
fairseq-generate "$DATA/prepared/bin" --user-dir "$USER_DIR" --path "$RUN/average.pt" \
  --gen-subset valid --quiet --log-format simple --task translation_sparse --source-lang ja \
  --target-lang en --beam 5 --max-tokens 8000 --nbest 5 \
  --search-report "$RUN/search-valid.jsonl"
