#!/usr/bin/env bash
# quickstart, softmax, rela_g attention, on a CPU
# Printed by: fairseq-sparse run quickstart softmax+rela_g --cpu --stages align --print
set -euo pipefail

DATA=data/quickstart
RUN=runs/quickstart/softmax+rela_g-cpu
export MALLOC_MMAP_MAX_=0
export MALLOC_TRIM_THRESHOLD_=4000000000

# Word alignments from the cross-attention
mkdir -p "$RUN"
fairseq-sparse align "$DATA/prepared/bin" --path "$RUN/average.pt" --subset test \
  --output-folder "$RUN/alignments" --max-tokens 1024 --cpu
fairseq-sparse analyze alignment "$DATA/raw/test.talp" "$RUN/alignments" \
  --words "$DATA/raw/test.tok.de" "$DATA/raw/test.tok.en" --json "$RUN/alignment.json"
