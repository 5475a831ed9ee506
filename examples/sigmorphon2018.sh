#!/usr/bin/env bash
# sigmorphon2018_medium, entmax15, on a GPU
# Printed by: fairseq-sparse run sigmorphon2018_medium entmax15 --gpu --print
set -euo pipefail

DATA=data/sigmorphon2018_medium
RUN=runs/sigmorphon2018_medium/entmax15-gpu
USER_DIR="$(python -m fairseq_sparse)"
CORES="$(getconf _NPROCESSORS_ONLN)"
export PYTHONUNBUFFERED=1

# Text -> tokens -> subwords -> fairseq's binary format
mkdir -p "$DATA/prepared/characters" "$DATA/prepared/text"
# download
fairseq-sparse corpus download \
  https://codeload.github.com/sigmorphon/conll2018/tar.gz/refs/heads/master \
  "$DATA/raw/conll2018.tar.gz"
# one corpus of all languages: characters, with the language and tags in front
fairseq-sparse corpus inflection --raw "$DATA/raw" --output-folder "$DATA/prepared" \
  --setting medium --language-count 102
# the binary format of fairseq
rm -rf "$DATA/prepared/bin"
fairseq-preprocess --source-lang lemma --target-lang form \
  --trainpref "$DATA/prepared/characters/train" --validpref "$DATA/prepared/characters/valid" \
  --testpref "$DATA/prepared/characters/test" --destdir "$DATA/prepared/bin" --workers "$CORES"

# Training; the same command again resumes it
fairseq-train "$DATA/prepared/bin" --user-dir "$USER_DIR" --save-dir "$RUN/checkpoints" \
  --task translation_sparse --source-lang lemma --target-lang form --no-epoch-checkpoints \
  --optimizer adam --lr 1e-3 --clip-norm 5.0 --lr-scheduler reduce_lr_on_valid_loss \
  --lr-shrink 0.5 --lr-patience 0 --lr-threshold 0 --lr-compare-with previous \
  --maximize-best-checkpoint-metric --encoder-dropout-in 0 --encoder-dropout-out 0 \
  --decoder-dropout-in 0 --arch lstm_sparse_morph --log-interval 20 \
  --best-checkpoint-metric sentence_accuracy --max-epoch 60 --validate-interval 10 \
  --criterion entmax_loss --output-transform entmax15 --label-smoothing 0 --seed 1 \
  --batch-size 64 --update-freq 1 --log-format json --distributed-world-size 1

# The model that is used: an average of checkpoints, or the best one
mkdir -p "$RUN"
fairseq-sparse average --inputs "$RUN/checkpoints/checkpoint_best.pt" --output "$RUN/average.pt"

# Decoding and scoring of the test set
fairseq-generate "$DATA/prepared/bin" --user-dir "$USER_DIR" --path "$RUN/average.pt" \
  --gen-subset test --log-format simple --num-workers 0 --task translation_sparse \
  --source-lang lemma --target-lang form --post-process sentencepiece --beam 5 --max-tokens 8000 \
  > "$RUN/generate-test.txt" 2>&1
fairseq-sparse score-inflection "$RUN/generate-test.txt" \
  --reference "$DATA/prepared/text/test.tsv" --guesses "$RUN/guesses" \
  --json "$RUN/accuracy.json"

# Statistics of output and attention on the references
mkdir -p "$RUN/measurements"
fairseq-validate "$DATA/prepared/bin" --user-dir "$USER_DIR" --path "$RUN/average.pt" \
  --valid-subset test --max-tokens 4000 --distributed-world-size 1 --log-format json \
  --task translation_sparse --source-lang lemma --target-lang form \
  > "$RUN/validate-test.txt" 2>&1
fairseq-sparse analyze support "$DATA/prepared/bin" --path "$RUN/average.pt" --subset test \
  --no-search --max-tokens 4000
fairseq-sparse analyze attention "$DATA/prepared/bin" --path "$RUN/average.pt" --subset test \
  --subwords none --max-tokens 4000
fairseq-validate "$DATA/prepared/bin" --user-dir "$USER_DIR" --path "$RUN/average.pt" \
  --valid-subset valid --max-tokens 4000 --distributed-world-size 1 --log-format json \
  --task translation_sparse --source-lang lemma --target-lang form \
  > "$RUN/validate-valid.txt" 2>&1
fairseq-sparse analyze support "$DATA/prepared/bin" --path "$RUN/average.pt" --subset valid \
  --no-search --max-tokens 4000
fairseq-sparse analyze attention "$DATA/prepared/bin" --path "$RUN/average.pt" --subset valid \
  --subwords none --max-tokens 4000
fairseq-generate "$DATA/prepared/bin" --user-dir "$USER_DIR" --path "$RUN/average.pt" \
  --gen-subset valid --quiet --log-format simple --task translation_sparse --source-lang lemma \
  --target-lang form --beam 5 --max-tokens 8000 --nbest 5 \
  --search-report "$RUN/search-valid.jsonl"
