#!/usr/bin/env bash
# Archives -> raw text -> tokens -> BPE units, or characters, or the text of a language model ->
# fairseq's binary format, in DATA_DIR/prepared.
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
CORPUS=() TEXT_FLAGS=() RAW_NAMES="" HOLD_OUT="" CHECKSUMS="${CHECKSUMS:-}"
load_recipe
# Finished data are only read, and may be in a folder that the user cannot write.
if [[ ! -d "$PREPARED/bin" ]]; then lock_folder "$DATA_DIR"; fi

partial="$DATA_DIR/prepared.partial"
if [[ -e "$PREPARED" && ! -f "$PREPARED/settings" ]]; then
  fail "$PREPARED was not made by this recipe: delete it, or choose another --data-dir"
fi

[[ "$TEXT" == bpe || "$TEXT" == characters || "$TEXT" == text ]] \
  || fail "TEXT=$TEXT: neither bpe, characters nor text"
[[ "$DICTIONARY" == joined || "$DICTIONARY" == separate ]] \
  || fail "DICTIONARY=$DICTIONARY: neither joined nor separate"
if [[ "$TEXT" == characters ]]; then
  inflection=("$ROOT/scripts/prepare_inflection.py" --setting "$SETTING" --languages "$LANGUAGES")
fi

# Print the archives named in CORPUS.
corpus_files() {
  printf '%s\n' "${CORPUS[@]}" \
    | awk '{ for (side = 3; side <= 4; side++) { sub(/[!#].*/, "", $side); print $side } }' \
    | sort -u
}

# Only the archives named in CORPUS are needed.
if (( ${#CORPUS[@]} )); then
  RAW_NAMES="^($(corpus_files | sed 's/[.]/[.]/g' | paste -sd '|' -))\$"
fi

# Print the lines "SUM NAME ADDRESS" of CHECKSUMS whose name matches RAW_NAMES, if set. The sum is a
# sha256, an md5, or "-" if no checksum is published. If BASE_URL is set, the address, which may be
# left out, is BASE_URL/NAME.
raw_list() {
  awk -v pattern="${RAW_NAMES:-.}" -v base="${BASE_URL:-}" '
    /^[^#]/ && $2 ~ pattern { print $1, $2, base == "" ? $3 : base "/" $2 }' "$CHECKSUMS"
}

# Print the names of the files needed for the data: those in the list or, without a list, the text
# files, plain or gzip.
needed_names() {
  local prefix language name word flag="" prefixes=("${TRAIN_PREFIX:-}" "${TEST_PREFIX:-}")
  if [[ -n "$CHECKSUMS" ]]; then
    raw_list | awk '{ print $2 }'
  elif (( ${#CORPUS[@]} )); then
    corpus_files
  elif [[ "$TEXT" == text ]]; then
    for word in "${TEXT_FLAGS[@]}"; do
      case "$flag" in --single | --train | --valid | --test) printf '%s\n' "${word%%!*}" ;; esac
      flag="$word"
    done | sort -u
  else
    if [[ -z "$HOLD_OUT" ]]; then prefixes+=("$VALID_PREFIX"); fi
    for prefix in "${prefixes[@]}"; do
      for language in "$SOURCE_LANG" "$TARGET_LANG"; do
        name="$prefix.$language"
        if [[ ! -f "$RAW_DIR/$name" && -f "$RAW_DIR/$name.gz" ]]; then name="$name.gz"; fi
        printf '%s\n' "$name"
      done
    done
  fi
}

# Print the needed files in RAW_DIR, which may differ from the published ones.
own_files() {
  local name
  if [[ "$TEXT" == characters ]]; then
    "$PYTHON" "${inflection[@]}" --data "$RAW_DIR" --list || fail "RAW_DIR: cannot be used (see above)"
    return
  fi
  while read -r name; do
    if [[ ! -f "$RAW_DIR/$name" && -f "$RAW_DIR/$name.gz" ]]; then name="$name.gz"; fi
    [[ -f "$RAW_DIR/$name" ]] || fail "RAW_DIR: no such file: $RAW_DIR/$name (needed:" \
      "$(needed_names | paste -sd ' ' -))"
    printf '%s\n' "$RAW_DIR/$name"
  done < <(needed_names)
}

# Fetch the missing files.
fetch() {
  local sum name address checksum
  while read -r sum name address; do
    checksum=()
    case ${#sum} in
      64) checksum=(--sha256 "$sum") ;;
      32) checksum=(--md5 "$sum") ;;
      1) say "no checksum of $name is known: the sha256 of what is fetched goes into prepared/settings" ;;
      *) fail "$CHECKSUMS: '$sum' of $name is neither a sha256 nor an md5, nor -" ;;
    esac
    "$PYTHON" "$ROOT/scripts/download.py" "$address" --output "$raw/$name" \
      ${checksum[@]+"${checksum[@]}"} \
      || fail "could not fetch $address (see above): run again to resume, or fetch the files by" \
        "hand and set RAW_DIR to their folder"
  done < <(raw_list)
}

# Print the sha256 of the fetched files in the format of sha256sum. If it is not published, take
# that of the file, or the one recorded when the data were prepared: the file may be deleted.
fetched_sums() {
  local sum name
  while read -r sum name _; do
    if [[ ${#sum} != 64 && -d "$PREPARED/bin" ]]; then
      sum="$(awk -v name="${name##*/}" '$1 == "raw" && $2 == name { print $3 }' "$PREPARED/settings")"
    elif [[ ${#sum} != 64 ]]; then
      sum="$(sha256_of "$raw/$name" | cut -d ' ' -f 1)"
    fi
    printf '%s  %s\n' "$sum" "${name##*/}"
  done < <(raw_list)
}

# 1. The origin of the data: fetched files, files in RAW_DIR, or a program of the recipes.
raw="$DATA_DIR/raw"
fetched=()
if [[ -n "${MAKE_RAW:-}" ]]; then
  origin="made by ${MAKE_RAW[*]}"
else
  [[ -n "$CHECKSUMS${RAW_DIR:-}" ]] \
    || fail "$DATASET has no list of files to fetch (CHECKSUMS): set RAW_DIR to the folder of its files"
  [[ -z "$CHECKSUMS" || -f "$CHECKSUMS" ]] || fail "CHECKSUMS: no such file: $CHECKSUMS"
  if [[ -n "${RAW_DIR:-}" ]]; then
    raw="$RAW_DIR"
    files="$(own_files)"
    paths=()
    while read -r path; do paths+=("$path"); done <<<"$files"
    sums="$(sha256_of "${paths[@]}")"
  else
    fetched=(--fetched)
    [[ -n "$(raw_list)" ]] || fail "$CHECKSUMS names no file${RAW_NAMES:+ that matches $RAW_NAMES}"
    if [[ ! -d "$PREPARED/bin" ]]; then fetch; fi
    sums="$(fetched_sums)"
  fi
  origin="$(printf '%s\n' "$sums" | awk '{ print "raw", $2, $1 }')"
fi
settings="dataset $DATASET
languages $SOURCE_LANG $TARGET_LANG"
add_setting() {
  settings="$settings
$*"
}
if [[ "$TEXT" == characters ]]; then
  add_setting text characters
  add_setting setting "$SETTING"
  add_setting inflection_languages "$LANGUAGES"
else
  if [[ "$TEXT" == text ]]; then add_setting text language_model; fi
  add_setting bpe_merges "$BPE_MERGES"
  for flag in ${TEXT_FLAGS[@]+"${TEXT_FLAGS[@]}"}; do add_setting text_flag "$flag"; done
  if [[ -n "$HOLD_OUT" ]]; then add_setting hold_out "$HOLD_OUT"; fi
  for row in ${CORPUS[@]+"${CORPUS[@]}"}; do add_setting take "$row"; done
fi
if [[ "$DICTIONARY" == separate ]]; then add_setting dictionary separate; fi
add_setting "$origin"

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
fi

# 2. Data made by a program of the recipes.
if [[ -n "${MAKE_RAW:-}" ]]; then
  "$PYTHON" "$EXAMPLES/${MAKE_RAW[0]}" "$raw" "${MAKE_RAW[@]:1}" || fail "${MAKE_RAW[0]} failed (see above)"
fi

# 3. Text. Files left by an interrupted run with the same settings are reused.
if [[ -d "$partial" && "$(cat -- "$partial/settings" 2>/dev/null)" != "$settings" ]]; then
  rm -rf -- "$partial"
fi
mkdir -p -- "$partial"
write_settings "$partial/settings" "$settings"
if [[ "$TEXT" == characters ]]; then
  prepare=("${inflection[@]}" --data "$raw")
elif [[ "$TEXT" == text ]]; then
  prepare=("$ROOT/scripts/prepare_language_model.py" --raw "$raw" --language "$SOURCE_LANG"
    "${TEXT_FLAGS[@]}" ${BPE_MERGES:+--bpe-merges "$BPE_MERGES"})
else
  languages=(--source-lang "$SOURCE_LANG" --target-lang "$TARGET_LANG")
  if [[ -n "${CORPUS:-}" ]]; then
    take=()
    for row in "${CORPUS[@]}"; do
      read -r -a words <<<"$row"
      take+=(--take "${words[@]}")
    done
    "$PYTHON" "$ROOT/scripts/unpack_corpus.py" "${languages[@]}" --raw "$raw" "${take[@]}" \
      --output "$partial/raw" ${fetched[@]+"${fetched[@]}"} \
      || fail "the archives could not be used (see above)"
    raw="$partial/raw" TRAIN_PREFIX=train VALID_PREFIX=valid TEST_PREFIX=test
  fi
  prepare=("$ROOT/scripts/prepare_text.py" "${languages[@]}"
    --train "$raw/$TRAIN_PREFIX" --test "$raw/$TEST_PREFIX"
    --bpe-merges "$BPE_MERGES" ${TEXT_FLAGS[@]+"${TEXT_FLAGS[@]}"} ${WORKERS:+--workers "$WORKERS"})
  if [[ -n "$HOLD_OUT" ]]; then
    prepare+=(--hold-out "$HOLD_OUT")
  else
    prepare+=(--valid "$raw/$VALID_PREFIX")
  fi
fi
"$PYTHON" "${prepare[@]}" --output "$partial" ${fetched[@]+"${fetched[@]}"} \
  || fail "the text could not be prepared (see above)"

if [[ "$TEXT" == characters ]]; then
  found="$(cut -f 1 -- "$partial/reference/test.tsv" | sort -u | wc -l | tr -d ' ')"
  (( found >= ALL_LANGUAGES )) || fail "$DATASET needs all $ALL_LANGUAGES languages, but only" \
    "$found are here: use ${DATASET}_part"
fi

# 4. Binary format. Relative paths, because fairseq-preprocess splits some of them at commas.
rm -rf -- "$partial/bin"
sides=(--source-lang "$SOURCE_LANG" --target-lang "$TARGET_LANG")
if [[ "$DICTIONARY" == joined ]]; then sides+=(--joined-dictionary); fi
dictionary="dict.$TARGET_LANG.txt"
if [[ "$TEXT" == text ]]; then sides=(--only-source) dictionary=dict.txt; fi
tests="$TEXT/test"
if [[ -f "$partial/reference/long.$TARGET_LANG" ]]; then tests="$tests,$TEXT/long"; fi
(
  cd -- "$partial"
  "$PYTHON" -m fairseq_cli.preprocess "${sides[@]}" \
    --trainpref "$TEXT/train" --validpref "$TEXT/valid" --testpref "$tests" --destdir bin \
    --workers "${WORKERS:-$("$PYTHON" -c 'import os; print(os.cpu_count())')}"
) || fail "fairseq-preprocess failed (see above)"
mv -- "$partial" "$PREPARED"
say "vocabulary: $(wc -l < "$PREPARED/bin/$dictionary" | tr -d ' ') entries"
say "prepared: $PREPARED"
