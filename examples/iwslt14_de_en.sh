#!/usr/bin/env bash
# iwslt14_de_en, alpha_relu, settings of sue, on a GPU
# Printed by: fairseq-sparse run iwslt14_de_en alpha_relu --settings sue --gpu --print
set -euo pipefail

DATA=data/iwslt14_de_en
RUN=runs/iwslt14_de_en/alpha_relu-sue-gpu
USER_DIR="$(python -m fairseq_sparse)"
CORES="$(getconf _NPROCESSORS_ONLN)"
export PYTHONUNBUFFERED=1

# Text -> tokens -> subwords -> fairseq's binary format
mkdir -p "$DATA/prepared/text" "$DATA/prepared/tokens" "$DATA/prepared/tokenized" \
  "$DATA/prepared" "$DATA/prepared/bpe"
# download
fairseq-sparse corpus download https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz \
  "$DATA/raw/iwslt14.de-en.tgz" --md5 10936dfdf616504ddbd844e91b94ef4a
# raw sentences, one a line
fairseq-sparse corpus extract --raw "$DATA/raw" --output-folder "$DATA/prepared/text" \
  --languages de en \
  --take train talks 'iwslt14.de-en.tgz!de-en/train.tags.de-en.de' 'iwslt14.de-en.tgz!de-en/train.tags.de-en.en' \
  --take test seg 'iwslt14.de-en.tgz!de-en/IWSLT14.TED.dev2010.de-en.de.xml' 'iwslt14.de-en.tgz!de-en/IWSLT14.TED.dev2010.de-en.en.xml' \
  --take test seg 'iwslt14.de-en.tgz!de-en/IWSLT14.TEDX.dev2012.de-en.de.xml' 'iwslt14.de-en.tgz!de-en/IWSLT14.TEDX.dev2012.de-en.en.xml' \
  --take test seg 'iwslt14.de-en.tgz!de-en/IWSLT14.TED.tst2010.de-en.de.xml' 'iwslt14.de-en.tgz!de-en/IWSLT14.TED.tst2010.de-en.en.xml' \
  --take test seg 'iwslt14.de-en.tgz!de-en/IWSLT14.TED.tst2011.de-en.de.xml' 'iwslt14.de-en.tgz!de-en/IWSLT14.TED.tst2011.de-en.en.xml' \
  --take test seg 'iwslt14.de-en.tgz!de-en/IWSLT14.TED.tst2012.de-en.de.xml' 'iwslt14.de-en.tgz!de-en/IWSLT14.TED.tst2012.de-en.en.xml'
# split the sentences into tokens
sacremoses -l de -j "$CORES" -q tokenize -a < "$DATA/prepared/text/train.de" \
  > "$DATA/prepared/tokens/train.de"
sacremoses -l en -j "$CORES" -q tokenize -a < "$DATA/prepared/text/train.en" \
  > "$DATA/prepared/tokens/train.en"
sacremoses -l de -q tokenize -a < "$DATA/prepared/text/test.de" \
  > "$DATA/prepared/tokens/test.de"
sacremoses -l en -q tokenize -a < "$DATA/prepared/text/test.en" \
  > "$DATA/prepared/tokens/test.en"
# leave out empty and overlong training pairs
fairseq-sparse corpus clean --input "$DATA/prepared/tokens" \
  --output-folder "$DATA/prepared/tokenized" --languages de en --max-tokens 175 --max-ratio 1.5 \
  --hold-out 23
# BPE
cat "$DATA/prepared/tokenized/train.de" "$DATA/prepared/tokenized/train.en" \
  | subword-nmt learn-bpe -s 10000 > "$DATA/prepared/bpe.codes"
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
  --task translation_sparse --source-lang de --target-lang en --no-epoch-checkpoints \
  --arch transformer_sparse_iwslt_de_en --dropout 0.3 --weight-decay 0 --optimizer adam \
  --adam-betas '(0.9, 0.998)' --clip-norm 0 --lr 0.00139754 --lr-scheduler inverse_sqrt \
  --warmup-init-lr 3.494e-07 --warmup-updates 4000 --max-epoch 150 --log-interval 100 --fp16 \
  --encoder-attention-heads 8 --decoder-attention-heads 8 --encoder-normalize-before \
  --decoder-normalize-before --adam-eps 1e-9 --activation-dropout 0.3 --attention-dropout 0.1 \
  --eval-bleu --eval-bleu-args '{"beam": 5, "lenpen": 1.0}' --eval-bleu-remove-bpe \
  --eval-bleu-detok moses --eval-bleu-detok-args '{"target_lang": "en"}' \
  --best-checkpoint-metric bleu --maximize-best-checkpoint-metric --output-init xavier_uniform \
  --criterion alpha_relu_loss --output-transform alpha_relu --output-alpha 1.5 --output-tau data \
  --label-smoothing 0 --seed 1 --max-tokens 4096 --update-freq 8 --log-format json \
  --distributed-world-size 1

# The model that is used: an average of checkpoints, or the best one
mkdir -p "$RUN"
fairseq-sparse average --inputs "$RUN/checkpoints/checkpoint_best.pt" --output "$RUN/average.pt"

# Decoding and scoring of the test set
fairseq-generate "$DATA/prepared/bin" --user-dir "$USER_DIR" --path "$RUN/average.pt" \
  --gen-subset test --log-format simple --num-workers 0 --task translation_sparse \
  --source-lang de --target-lang en --post-process subword_nmt --tokenizer moses --beam 5 \
  --lenpen 1.0 --max-tokens 8000 > "$RUN/generate-test.txt" 2>&1
fairseq-sparse score "$RUN/generate-test.txt" --reference "$DATA/prepared/text/test.en" \
  --tokenized-reference "$DATA/prepared/tokenized/test.en" --output "$RUN/hyp.detok.txt" \
  --json "$RUN/bleu.json"

# Word alignments from the cross-attention
fairseq-sparse align "$DATA/prepared/bin" --path "$RUN/average.pt" --subset test \
  --output-folder "$RUN/alignments" --max-tokens 4096

# Statistics of output and attention on the references
mkdir -p "$RUN/measurements"
fairseq-validate "$DATA/prepared/bin" --user-dir "$USER_DIR" --path "$RUN/average.pt" \
  --valid-subset test --max-tokens 4096 --distributed-world-size 1 --log-format json \
  --task translation_sparse --source-lang de --target-lang en > "$RUN/validate-test.txt" 2>&1
fairseq-sparse analyze support "$DATA/prepared/bin" --path "$RUN/average.pt" --subset test \
  --no-search --max-tokens 4096
fairseq-sparse analyze attention "$DATA/prepared/bin" --path "$RUN/average.pt" --subset test \
  --subwords subword_nmt --max-tokens 4096
