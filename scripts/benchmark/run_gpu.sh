#!/usr/bin/env bash
# Every check and benchmark that needs a GPU, in parts of at most 9 minutes. See --help.
BENCHMARKS="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
source "$BENCHMARKS/parts.sh"

usage() {
  cat <<HELP
usage: bash scripts/benchmark/run_gpu.sh [--part NAME,...] [--out DIR] [--wheels DIR] [--dry-run]

Runs checks and benchmarks that need one GPU, in parts that end within 9 minutes each. Every step of
a part has a time limit, and a step that fails or is stopped does not stop the others. Writes
DIR/benchmarks.md and DIR/benchmarks.json, with everything measured there so far (DIR:
runs/benchmarks_gpu); DIR/NAME.json has all figures of one measurement. When started again, it does
what is not done yet.

  --part NAME,...  overview (default): checks every kernel against fp64 on the CPU, measures
                   mappings and losses, the output layer, attention and training steps of a base-size
                   Transformer (random text, V = 40,000) in fp32, bf16 and fp16, and runs the tests
                   marked gpu in the remaining time
                   layers_M_V, for M = 2048, 8192 and V = 32000, 128000, 256000: the output layer of
                   M tokens in bf16, d = 512 to 4,096, untrained and like our trained model, with
                   matrix products, errors against fp64 and the share of a training step
                   layers_cutedsl: the same of Liger-Kernel in CuTe, for some sizes
                   attention_full, attention_causal, attention_cross (keys padded),
                   attention_dropout (0.1), attention_trained (wider scores): 32 to 65,536 tokens in
                   bf16, also with learned alpha, with errors against fp64
                   all: all parts, one after another
  --wheels DIR     first install the wheels of this folder beside the results, without dependencies
                   and without network; for a machine with the same Python, make them with, e.g.,
                     pip wheel --no-deps --no-build-isolation -w DIR fairseq-fixed==0.12.3.1 \\
                       hydra-core omegaconf antlr4-python3-runtime==4.9.3 PyYAML bitarray regex \\
                       sacrebleu portalocker tabulate colorama lxml tqdm entmax liger-kernel \\
                       cut-cross-entropy adasplash==0.2.2 quack-kernels einops apache-tvm-ffi \\
                       torch-c-dlpack-ext nvidia-cutlass-dsl nvidia-cutlass-dsl-libs-base \\
                       nvidia-cutlass-dsl-libs-cu12 flash-attn flash-attn-4==4.0.0b36
                   and scikit-learn with its dependencies, if the machine does not have it
  --dry-run        on the CPU at toy sizes, to see whether everything runs: the figures mean nothing;
                   without --part, all parts
  --help           this text

Needs Python with PyTorch and Triton. Without fairseq, whole models are left out; without pytest and
hypothesis, the tests. The row of a peer that is not installed says how to install it.

PYTHON is the Python to use (default: .venv/bin/python of the project, else python3).
HELP
}

PARTS=(overview)
for tokens in 2048 8192; do
  for vocabulary in 32000 128000 256000; do PARTS+=("layers_${tokens}_$vocabulary"); done
done
PARTS+=(layers_cutedsl attention_full attention_causal attention_cross attention_dropout)
PARTS+=(attention_trained)
OUT=""
WHEELS=""
DRY_RUN=""
CHOSEN=()
while (( $# )); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --dry-run) DRY_RUN=yes ;;
    --part) option_value "$@"; IFS=',' read -r -a CHOSEN <<<"$2"; shift ;;
    --out) option_value "$@"; OUT="$2"; shift ;;
    --wheels) option_value "$@"; WHEELS="$2"; shift ;;
    *) bad_usage "unknown option '$1'" ;;
  esac
  shift
done
if (( ${#CHOSEN[@]} == 0 )); then
  CHOSEN=(overview)
  if [[ -n "$DRY_RUN" ]]; then CHOSEN=(all); fi
fi
if [[ "${CHOSEN[*]}" == all ]]; then CHOSEN=("${PARTS[@]}"); fi
for name in "${CHOSEN[@]}"; do
  [[ " ${PARTS[*]} " == *" $name "* ]] || bad_usage "--part $name: choose from ${PARTS[*]}, or all"
done
[[ -z "$WHEELS" || -d "$WHEELS" ]] || bad_usage "--wheels $WHEELS: there is no such folder"
# The summary takes a few more seconds.
DEADLINE=520
if [[ -n "$DRY_RUN" ]]; then DEADLINE=0; fi
OUT="${OUT:-$ROOT/runs/benchmarks_gpu${DRY_RUN:+_dry_run}}"
mkdir -p -- "$OUT"
OUT="$(CDPATH='' cd -- "$OUT" && pwd)"
if [[ -z "$DRY_RUN" ]]; then
  "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' \
    || fail "$PYTHON has no PyTorch that sees a GPU; --dry-run needs none"
fi

say "results: $OUT"
if [[ -n "$WHEELS" ]]; then
  part wheels 60 "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --upgrade \
    --target "$OUT/site" "$WHEELS"/*.whl
  export PYTHONPATH="$PYTHONPATH:$OUT/site"
fi
while read -r peer; do
  [[ -z "$peer" ]] || say "a peer is not installed: $peer"
done < <("$PYTHON" "$BENCHMARKS/peers.py")

# Sizes of the parts: full, or toy.
device=(--device cuda)
dtypes=(--dtypes float32,bfloat16,float16)
kernels=()
losses=(--sizes 4096x10000,4096x40000,512x262144 --rounds 7 --least-seconds 0.03)
layers=(--sizes 2048x512x10000,8192x512x40000,8192x512x60000 --rounds 7 --least-seconds 0.03)
attend=(--kinds rela_g,entmax15 --lengths 32,128,1024,4096 --tokens 16384 --model-dim 512 --heads 8
  --rounds 7 --least-seconds 0.03)
models=(--kinds rela_g,entmax15 --lengths 32,1024 --tokens 8192 --model-dim 512 --heads 8
  --dtypes bfloat16 --layers 6 --vocabulary 40000 --rounds 5)
base=(--set dropout=0.1)
for side in encoder decoder; do
  base+=(--set "$side-layers=6" --set "$side-embed-dim=512" --set "$side-ffn-embed-dim=2048")
  base+=(--set "$side-attention-heads=8")
done
training=(--vocabulary 40000 --variants stock,entmax15,alpha_relu,alpha_relu+rela_g
  --precisions bf16,fp16,fp32 "${base[@]}" --max-tokens 8192 --batches 8 --rounds 5)
tests=(-m gpu -q -p no:cacheprovider)
half=(--dtypes bfloat16)
widths=(512 1024 2048 4096)
layer=(--states untrained,like_model --bounds --errors 128 --body-layers 12 --rounds 5
  --least-seconds 0.03)
cutedsl=2048x1024x128000,8192x1024x32000,8192x4096x128000
long=(--parts attend --kinds rela_g,entmax15,entmax_learned --tokens 65536
  --lengths 32,128,512,1024,4096,8192,16384,65536 --model-dim 512 --heads 8 --errors 4096
  --rounds 5 --least-seconds 0.03)
if [[ -n "$DRY_RUN" ]]; then
  device=(--device cpu)
  dtypes=(--dtypes float32)
  kernels=(--rows 4x500)
  losses=(--sizes 8x300 --rounds 2 --least-seconds 0)
  layers=(--sizes 16x8x300 --rounds 2 --least-seconds 0)
  attend=(--kinds rela_g,entmax15 --lengths 6,9 --tokens 60 --model-dim 16 --heads 2 --rounds 2
    --least-seconds 0)
  models=(--kinds rela_g --lengths 6 --tokens 60 --model-dim 16 --heads 2 --layers 1
    --vocabulary 50 --rounds 2 --least-seconds 0)
  training=(--vocabulary 300 --variants stock,alpha_relu
    --set encoder-layers=1 --set encoder-embed-dim=16
    --set decoder-layers=1 --set decoder-embed-dim=16
    --max-tokens 300 --batches 1 --rounds 2)
  tests=(-m gpu -q -p no:cacheprovider --collect-only)
  half=("${dtypes[@]}")
  widths=(8)
  layer=(--states untrained,like_model --bounds --errors 4 --body-layers 1 --rounds 2
    --least-seconds 0)
  cutedsl=16x8x300
  long=(--parts attend --kinds rela_g,entmax15,entmax_learned --lengths 6,9 --tokens 60
    --model-dim 16 --heads 2 --errors 9 --rounds 2 --least-seconds 0)
fi

overview() {
  bench check_kernels 90 check_kernels "${kernels[@]+"${kernels[@]}"}" "${dtypes[@]}" "${device[@]}"
  bench losses 100 losses "${losses[@]}" "${dtypes[@]}" "${device[@]}"
  bench linear_loss 90 linear_loss "${layers[@]}" "${dtypes[@]}" "${device[@]}"
  bench attention 60 attention --parts attend "${attend[@]}" "${dtypes[@]}" "${device[@]}"
  bench attention_and_causal 50 attention --parts attend --causal "${attend[@]}" "${dtypes[@]}" \
    "${device[@]}"
  if has fairseq; then
    bench training_step 130 training_step "${training[@]}" --fused-only "${device[@]}"
    bench attention_models 60 attention --parts module,step "${models[@]}" "${device[@]}"
  else
    skip training_step "$PYTHON cannot import fairseq (see --wheels)"
    skip attention_models "$PYTHON cannot import fairseq (see --wheels)"
  fi
  if has pytest && has hypothesis; then
    folder=tests/ops # needs no fairseq
    if has fairseq; then folder=tests; fi
    cd -- "$ROOT"
    part tests 300 "$PYTHON" -m pytest "$folder" "${tests[@]}"
  else
    skip tests "$PYTHON has no pytest and hypothesis"
  fi
}

# layers NAME TOKENS VOCABULARY: the output layer, of every width.
layers() {
  local tokens="$2" vocabulary="$3" sizes="" width
  if [[ -n "$DRY_RUN" ]]; then tokens=16 vocabulary=300; fi
  for width in "${widths[@]}"; do sizes="$sizes,${tokens}x${width}x$vocabulary"; done
  bench "$1" 0 linear_loss --sizes "${sizes#,}" "${layer[@]}" "${half[@]}" "${device[@]}"
}

for name in "${CHOSEN[@]}"; do
  SECONDS=0
  case "$name" in
    overview) overview ;;
    layers_cutedsl)
      export LIGER_KERNEL_IMPL=cutedsl
      bench "$name" 0 linear_loss --sizes "$cutedsl" --only Liger "${layer[@]}" "${half[@]}" \
        "${device[@]}"
      unset LIGER_KERNEL_IMPL
      ;;
    layers_*) IFS='_' read -r _ tokens vocabulary <<<"$name"; layers "$name" "$tokens" "$vocabulary" ;;
    attention_full) bench "$name" 0 attention "${long[@]}" "${half[@]}" "${device[@]}" ;;
    attention_causal) bench "$name" 0 attention --causal "${long[@]}" "${half[@]}" "${device[@]}" ;;
    attention_cross) bench "$name" 0 attention --padded "${long[@]}" "${half[@]}" "${device[@]}" ;;
    attention_dropout)
      bench "$name" 0 attention --attention-dropout 0.1 "${long[@]}" "${half[@]}" "${device[@]}"
      ;;
    attention_trained)
      bench "$name" 0 attention --spread 4 "${long[@]}" "${half[@]}" "${device[@]}"
      ;;
  esac
done
finish "$DRY_RUN"
