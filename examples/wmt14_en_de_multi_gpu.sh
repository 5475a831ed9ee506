#!/usr/bin/env bash
# wmt14_en_de_32k, softmax, rela_g attention, settings of rela, on a GPU
# Printed by: fairseq-sparse run wmt14_en_de_32k softmax+rela_g --settings rela --gpu --nproc-per-node 8 --print
set -euo pipefail

DATA=data/wmt14_en_de_32k
RUN=runs/wmt14_en_de_32k/softmax+rela_g-rela-gpu
USER_DIR="$(python -m fairseq_sparse)"
CORES="$(getconf _NPROCESSORS_ONLN)"
export PYTHONUNBUFFERED=1

# Text -> tokens -> subwords -> fairseq's binary format
mkdir -p "$DATA/prepared/text" "$DATA/prepared/tokens" "$DATA/prepared/tokenized" \
  "$DATA/prepared" "$DATA/prepared/bpe"
# download
fairseq-sparse corpus download https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz \
  "$DATA/raw/training-parallel-europarl-v7.tgz" \
  --sha256 0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7
fairseq-sparse corpus download https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz \
  "$DATA/raw/training-parallel-commoncrawl.tgz" \
  --sha256 c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5
fairseq-sparse corpus download https://www.statmt.org/wmt14/training-parallel-nc-v9.tgz \
  "$DATA/raw/training-parallel-nc-v9.tgz" \
  --sha256 cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485
fairseq-sparse corpus download https://statmt.org/wmt13/test.tgz "$DATA/raw/wmt13-test.tgz" \
  --md5 48eca5d02f637af44e85186847141f67
fairseq-sparse corpus download https://statmt.org/wmt14/test-full.tgz \
  "$DATA/raw/wmt14-test-full.tgz" --md5 a8cd784e006feb32ac6f3d9ec7eb389a
# raw sentences, one a line
fairseq-sparse corpus extract --raw "$DATA/raw" --output-folder "$DATA/prepared/text" \
  --languages en de \
  --take train text 'training-parallel-europarl-v7.tgz!training/europarl-v7.de-en.en' 'training-parallel-europarl-v7.tgz!training/europarl-v7.de-en.de' \
  --take train text 'training-parallel-commoncrawl.tgz!commoncrawl.de-en.en' 'training-parallel-commoncrawl.tgz!commoncrawl.de-en.de' \
  --take train text 'training-parallel-nc-v9.tgz!training/news-commentary-v9.de-en.en' 'training-parallel-nc-v9.tgz!training/news-commentary-v9.de-en.de' \
  --take valid seg 'wmt13-test.tgz!test/newstest2013-src.en.sgm' 'wmt13-test.tgz!test/newstest2013-src.de.sgm' \
  --take test seg 'wmt14-test-full.tgz!test-full/newstest2014-deen-src.en.sgm' 'wmt14-test-full.tgz!test-full/newstest2014-deen-ref.de.sgm'
# split the sentences into tokens
sacremoses -l en -j "$CORES" -q tokenize -a < "$DATA/prepared/text/train.en" \
  > "$DATA/prepared/tokens/train.en"
sacremoses -l de -j "$CORES" -q tokenize -a < "$DATA/prepared/text/train.de" \
  > "$DATA/prepared/tokens/train.de"
sacremoses -l en -q tokenize -a < "$DATA/prepared/text/valid.en" \
  > "$DATA/prepared/tokens/valid.en"
sacremoses -l de -q tokenize -a < "$DATA/prepared/text/valid.de" \
  > "$DATA/prepared/tokens/valid.de"
sacremoses -l en -q tokenize -a < "$DATA/prepared/text/test.en" \
  > "$DATA/prepared/tokens/test.en"
sacremoses -l de -q tokenize -a < "$DATA/prepared/text/test.de" \
  > "$DATA/prepared/tokens/test.de"
# leave out empty and overlong training pairs
fairseq-sparse corpus clean --input "$DATA/prepared/tokens" \
  --output-folder "$DATA/prepared/tokenized" --languages en de --max-tokens 250
# BPE
cat "$DATA/prepared/tokenized/train.en" "$DATA/prepared/tokenized/train.de" \
  | subword-nmt learn-bpe -s 32000 > "$DATA/prepared/bpe.codes"
subword-nmt apply-bpe -c "$DATA/prepared/bpe.codes" < "$DATA/prepared/tokenized/train.en" \
  > "$DATA/prepared/bpe/train.en"
subword-nmt apply-bpe -c "$DATA/prepared/bpe.codes" < "$DATA/prepared/tokenized/train.de" \
  > "$DATA/prepared/bpe/train.de"
subword-nmt apply-bpe -c "$DATA/prepared/bpe.codes" < "$DATA/prepared/tokenized/valid.en" \
  > "$DATA/prepared/bpe/valid.en"
subword-nmt apply-bpe -c "$DATA/prepared/bpe.codes" < "$DATA/prepared/tokenized/valid.de" \
  > "$DATA/prepared/bpe/valid.de"
subword-nmt apply-bpe -c "$DATA/prepared/bpe.codes" < "$DATA/prepared/tokenized/test.en" \
  > "$DATA/prepared/bpe/test.en"
subword-nmt apply-bpe -c "$DATA/prepared/bpe.codes" < "$DATA/prepared/tokenized/test.de" \
  > "$DATA/prepared/bpe/test.de"
# the binary format of fairseq
rm -rf "$DATA/prepared/bin"
fairseq-preprocess --source-lang en --target-lang de --trainpref "$DATA/prepared/bpe/train" \
  --validpref "$DATA/prepared/bpe/valid" --testpref "$DATA/prepared/bpe/test" \
  --destdir "$DATA/prepared/bin" --workers "$CORES"

# Training; the same command again resumes it
# On several machines: the same on each, with --nnodes N --node-rank K --master-addr HOST instead
# of --standalone --local-addr localhost, and all workers counted in --distributed-world-size and
# --update-freq. In a job of Slurm with one task on each machine:
#   export HOST="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
#   srun bash -c 'torchrun --nnodes $SLURM_NNODES --node-rank $SLURM_NODEID --master-addr $HOST ...'
torchrun --standalone --local-addr localhost --nproc-per-node 8 \
  --no-python fairseq-train "$DATA/prepared/bin" --user-dir "$USER_DIR" \
  --save-dir "$RUN/checkpoints" --task translation_sparse --source-lang en --target-lang de \
  --no-epoch-checkpoints --keep-interval-updates 5 --arch transformer_sparse_wmt_en_de \
  --dropout 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0 --lr 0.00069877 \
  --lr-scheduler inverse_sqrt --warmup-init-lr 1.747e-07 --warmup-updates 4000 \
  --max-update 300000 --log-interval 100 --skip-invalid-size-inputs-valid-test \
  --share-decoder-input-output-embed --save-interval-updates 5000 --fp16 --attention-dropout 0.1 \
  --activation-dropout 0.1 --adam-eps 1e-8 --weight-decay 0 --criterion entmax_loss \
  --output-transform softmax --label-smoothing 0.1 --attention rela_g --seed 1 --max-tokens 1875 \
  --update-freq 2 --log-format json --distributed-world-size 8 --distributed-rank -1 \
  --distributed-init-method env:// --distributed-no-spawn

# The model that is used: an average of checkpoints, or the best one
mkdir -p "$RUN"
fairseq-sparse average --inputs "$RUN/checkpoints" --num-update-checkpoints 5 \
  --output "$RUN/average.pt"

# Decoding and scoring of the test set
fairseq-generate "$DATA/prepared/bin" --user-dir "$USER_DIR" --path "$RUN/average.pt" \
  --gen-subset test --log-format simple --num-workers 0 --task translation_sparse \
  --source-lang en --target-lang de --post-process subword_nmt --tokenizer moses --beam 4 \
  --lenpen 0.6 --max-tokens 8000 > "$RUN/generate-test.txt" 2>&1
fairseq-sparse score "$RUN/generate-test.txt" --reference "$DATA/prepared/text/test.de" \
  --tokenized-reference "$DATA/prepared/tokenized/test.de" --output "$RUN/hyp.detok.txt" \
  --json "$RUN/bleu.json"

# Word alignments from the cross-attention
fairseq-sparse align "$DATA/prepared/bin" --path "$RUN/average.pt" --subset test \
  --output-folder "$RUN/alignments" --max-tokens 3200

# Statistics of output and attention on the references
mkdir -p "$RUN/measurements"
fairseq-validate "$DATA/prepared/bin" --user-dir "$USER_DIR" --path "$RUN/average.pt" \
  --valid-subset test --max-tokens 3200 --distributed-world-size 1 --log-format json \
  --task translation_sparse --source-lang en --target-lang de > "$RUN/validate-test.txt" 2>&1
fairseq-sparse analyze support "$DATA/prepared/bin" --path "$RUN/average.pt" --subset test \
  --no-search --max-tokens 3200
fairseq-sparse analyze attention "$DATA/prepared/bin" --path "$RUN/average.pt" --subset test \
  --subwords subword_nmt --max-tokens 3200
