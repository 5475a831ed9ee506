#!/usr/bin/env bash
# Raw text -> tokens -> BPE units -> fairseq's binary format, in DATA_DIR/prepared.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
load_recipe
lock_folder "$DATA_DIR"

raw_names() { awk '{ print $2 }' "$CHECKSUMS"; }

# 1. What the data is made from. RAW_DIR's files may differ from the published ones; a data set that
# a program of ours makes has neither.
if [[ -n "${MAKE_RAW:-}" ]]; then
  raw="$DATA_DIR/raw"
  origin="made by ${MAKE_RAW[*]}"
else
  [[ -f "$CHECKSUMS" ]] || fail "CHECKSUMS: no such file: $CHECKSUMS"
  if [[ -n "${RAW_DIR:-}" ]]; then
    raw="$RAW_DIR"
    paths=()
    while read -r name; do
      [[ -f "$raw/$name" ]] || fail "RAW_DIR: no such file: $raw/$name (needed: $(raw_names | tr '\n' ' '))"
      paths+=("$raw/$name")
    done < <(raw_names)
    sums="$(sha256_of "${paths[@]}")"
  else
    raw="$DATA_DIR/raw"
    sums="$(cat -- "$CHECKSUMS")"
  fi
  origin="$(printf '%s\n' "$sums" | awk '{ print "raw", $2, $1 }')"
fi
settings="dataset $DATASET
languages $SOURCE_LANG $TARGET_LANG
bpe_merges $BPE_MERGES
$origin"

partial="$DATA_DIR/prepared.partial"
if [[ -f "$PREPARED/settings" ]]; then
  difference="$(settings_difference "$PREPARED/settings" "$settings")"
  if [[ -n "$difference" ]]; then
    printf '%s\n' "$difference" >&2
    fail "$PREPARED was made with other settings (above): delete it, or choose another --data-dir"
  fi
  if [[ -d "$PREPARED/bin" ]]; then
    say "done already: $PREPARED"
    exit 0
  fi
  rm -rf -- "$partial"
  mv -- "$PREPARED" "$partial"
elif [[ -e "$PREPARED" ]]; then
  fail "$PREPARED was not made by this recipe: delete it, or choose another --data-dir"
fi

# 2. Make or fetch.
if [[ -n "${MAKE_RAW:-}" ]]; then
  "$PYTHON" "$EXAMPLES/${MAKE_RAW[0]}" "$raw" "${MAKE_RAW[@]:1}" || fail "${MAKE_RAW[0]} failed (see above)"
elif [[ -z "${RAW_DIR:-}" ]]; then
  while read -r sha256 name; do
    "$PYTHON" "$ROOT/scripts/download.py" "$BASE_URL/$name" --output "$raw/$name" --sha256 "$sha256" \
      || fail "could not fetch $BASE_URL/$name (see above): run again to resume," \
        "or fetch the files by hand and set RAW_DIR to their folder"
  done < "$CHECKSUMS"
fi

# 3. Text. What an interrupted run with the same settings left behind is used again.
if [[ -d "$partial" && "$(cat -- "$partial/settings" 2>/dev/null)" != "$settings" ]]; then
  rm -rf -- "$partial"
fi
mkdir -p -- "$partial"
write_settings "$partial/settings" "$settings"
"$PYTHON" "$ROOT/scripts/prepare_text.py" \
  --source-lang "$SOURCE_LANG" --target-lang "$TARGET_LANG" \
  --train "$raw/$TRAIN_PREFIX" --valid "$raw/$VALID_PREFIX" --test "$raw/$TEST_PREFIX" \
  --bpe-merges "$BPE_MERGES" --output "$partial" ${WORKERS:+--workers "$WORKERS"} \
  || fail "the text could not be prepared (see above)"

# 4. Binary format. Relative paths, because fairseq-preprocess splits some of them at commas.
rm -rf -- "$partial/bin"
(
  cd -- "$partial"
  "$PYTHON" -m fairseq_cli.preprocess --source-lang "$SOURCE_LANG" --target-lang "$TARGET_LANG" \
    --trainpref bpe/train --validpref bpe/valid --testpref bpe/test --destdir bin \
    --joined-dictionary --workers "${WORKERS:-$("$PYTHON" -c 'import os; print(os.cpu_count())')}"
) || fail "fairseq-preprocess failed (see above)"
mv -- "$partial" "$PREPARED"
say "vocabulary: $(wc -l < "$PREPARED/bin/dict.$TARGET_LANG.txt" | tr -d ' ') entries"
say "prepared: $PREPARED"
