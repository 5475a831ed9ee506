#!/usr/bin/env bash
# Every benchmark that a CPU can run, and one page of the ratios. See --help.
BENCHMARKS="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"
source "$BENCHMARKS/parts.sh"
# Trained for a few epochs on the quickstart's corpus, unless MODELS names others.
TRAINED=(softmax sparsemax entmax15 alpha_relu)
VARIANTS=stock,softmax,sparsemax,entmax15,entmax15_k100,alpha_relu,entmax15+rela_g,alpha_relu+rela_g
LARGE_VOCABULARY=40000

usage() {
  cat <<HELP
usage: bash scripts/benchmark/run_all.sh [--dry-run] [OUT]

Measures on the CPU: mappings and losses, the output layer, attention, training steps, decoding.
It takes about 15 minutes on 2 otherwise idle cores. Writes OUT/benchmarks.md, with every target and
the ratios on this machine, and OUT/benchmarks.json (OUT: runs/benchmarks). When started again, it
skips the parts that are done; delete OUT/NAME.status to repeat the part NAME.

  --dry-run  toy sizes, to see whether everything runs: the figures mean nothing, and have a folder
             of their own, runs/benchmarks_dry_run
  --help     this text

Training steps are those of the recipe for Multi30k on a CPU. Its text is used if available, else
the synthetic corpus of the quickstart with as many entries in the dictionary; nothing is downloaded.

  DATA     folder that fairseq-preprocess made, for training steps and for MODELS
  RAW_DIR  folder of Multi30k's raw files (.gz, as published), prepared first if DATA is not set
  MODELS   trained models to decode with, on DATA: "softmax=FILE sparsemax=FILE ...", softmax first
           (default: four that are trained for 2 epochs on the quickstart's corpus; after such a
           short training, alpha-ReLU's translations may not end: see their length)
  PYTHON   the Python to use (default: .venv/bin/python of the project, else python3)
HELP
}

OUT=""
DRY_RUN=""
while (( $# )); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --dry-run) DRY_RUN=yes ;;
    -*) bad_usage "unknown option '$1'" ;;
    *)
      [[ -z "$OUT" ]] || bad_usage "one folder is enough: '$OUT' and '$1'"
      OUT="$1"
      ;;
  esac
  shift
done
[[ -z "${MODELS:-}" || -n "${DATA:-}" ]] || bad_usage "MODELS needs DATA"
DEADLINE=0
has fairseq || fail "$PYTHON cannot import fairseq: run scripts/setup_env.sh, or set PYTHON"
OUT="${OUT:-$ROOT/runs/benchmarks${DRY_RUN:+_dry_run}}"
mkdir -p -- "$OUT"
OUT="$(CDPATH='' cd -- "$OUT" && pwd)"

# Sizes of the parts: full, or toy.
losses=(--rounds 5)
layers=(--rounds 3)
attention=(--rounds 3 --lengths 25,1000 --kinds rela_g,sparsemax,entmax15)
training=(--rounds 3 --batches 4)
large=(--rounds 3 --batches 2 --variants stock,entmax15,alpha_relu)
decoding=(--rounds 3 --sentences 96)
epochs=2
vocabulary=7944 # of Multi30k in its recipe
smaller=()
if [[ -n "$DRY_RUN" ]]; then
  losses=(--rounds 2 --least-seconds 0 --sizes 8x300)
  layers=(--rounds 2 --least-seconds 0 --sizes 16x8x300)
  attention=(--rounds 2 --least-seconds 0 --lengths 6 --kinds rela_g --tokens 60 --max-len 3
    --model-dim 8 --heads 2 --layers 1 --vocabulary 30)
  tiny=()
  for side in encoder decoder; do
    tiny+=(--set "$side-layers=1" --set "$side-embed-dim=8" --set "$side-ffn-embed-dim=8")
  done
  training=(--rounds 2 --batches 1 "${tiny[@]}" --max-tokens 200)
  large=("${training[@]}" --variants stock,alpha_relu)
  decoding=(--rounds 2 --sentences 4)
  TRAINED=(softmax alpha_relu)
  VARIANTS=stock,entmax15
  LARGE_VOCABULARY=3000
  epochs=1
  vocabulary=2000
  made_by=quickstart/make_corpus.py,--train,3000,--valid,30,--test,20,--held-out,6
  smaller=("${tiny[@]}" --set "corpus.made_by=$made_by")
fi

# Run stages of a recipe on a CPU: recipe NAME DATASET VARIANT STAGES [OPTIONS].
recipe() {
  local name="$1" data="$2" variant="$3" stages="$4"
  part "$name" 0 "$PYTHON" -m fairseq_sparse run "$data" "$variant" --cpu --stages "$stages" \
    --epochs "$epochs" --average 1 --data-dir "$OUT/$data" --run-dir "$OUT/models/$variant" "${@:5}"
}

say "results: $OUT"
bench losses 0 losses "${losses[@]}"
bench linear_loss 0 linear_loss "${layers[@]}"
bench attention 0 attention "${attention[@]}"

# Text to train on, and models to decode with.
if [[ -z "${DATA:-}" && -n "${RAW_DIR:-}" ]]; then
  recipe multi30k multi30k_de_en softmax prepare
  DATA="$OUT/multi30k_de_en/prepared/bin"
fi
decode="${DATA:-}"
read -r -a models <<<"${MODELS:-}" || true
if (( ${#models[@]} == 0 )); then
  decode="$OUT/quickstart/prepared/bin"
  for variant in "${TRAINED[@]}"; do
    recipe "model_$variant" quickstart "$variant" prepare-average ${smaller[@]+"${smaller[@]}"}
    models+=("$variant=$OUT/models/$variant/average.pt")
  done
fi
text=("${DATA:-$decode}")
if [[ -z "${DATA:-}" ]]; then text+=(--vocabulary "$vocabulary"); fi

bench training_step 0 training_step "${text[@]}" --variants "$VARIANTS" "${training[@]}"
bench "training_step_$LARGE_VOCABULARY" 0 training_step "${text[0]}" \
  --vocabulary "$LARGE_VOCABULARY" --fused-only "${large[@]}"
bench decoding 0 decoding "$decode" --path "${models[@]}" \
  "${decoding[@]}"
finish "$DRY_RUN"
