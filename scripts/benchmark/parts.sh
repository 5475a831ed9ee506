# Shared by run_all.sh and run_gpu.sh: parts that are repeated, fail and are stopped independently.
# Source it. OUT, a folder, and DEADLINE, the seconds until all parts end (0: none), are set later.
set -euo pipefail
ROOT="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)"
source "$ROOT/examples/python.sh"
export PYTHON PYTHONUNBUFFERED=1
FAILED=0

say() { printf '[benchmark] %s\n' "$*" >&2; }

fail() {
  say "error: $*"
  exit 1
}

# Report an error in the command line; the script must define a function usage.
bad_usage() {
  printf '%s: %s\n\n' "${0##*/}" "$1" >&2
  usage >&2
  exit 2
}

# Check that an option has a value: option_value "$@", with the option first.
option_value() {
  (( $# > 1 )) && [[ -n "$2" ]] || bad_usage "$1 needs a value"
}

# part NAME LIMIT COMMAND...: run the command with its output in OUT/NAME.log, stopped after LIMIT
# seconds (0: never). OUT/NAME.status has the outcome, the seconds, and the command; a part that is
# done is skipped unless the command has changed.
part() {
  local name="$1" limit="$2" started=$SECONDS status code left
  shift 2
  local command="$*" file="$OUT/$name.status"
  if [[ -f "$file" && "$(sed -n 1p "$file")" == done && "$(sed -n '3,$p' "$file")" == "$command" ]]; then
    say "$name: done already"
    return
  fi
  if (( DEADLINE )); then
    left=$(( DEADLINE - SECONDS ))
    if (( left < 5 )); then
      skip "$name" "no time is left"
      return
    fi
    if (( limit == 0 || limit > left )); then limit=$left; fi
  fi
  say "$name; log: $OUT/$name.log"
  rm -f -- "$OUT/$name.json"
  # If this script is killed, too, the page shows the part as unfinished.
  printf '%s\n' unfinished 0 "$command" > "$file"
  code=0
  if (( limit )); then
    timeout -k 10 "$limit" "$@" > "$OUT/$name.log" 2>&1 || code=$?
  else
    "$@" > "$OUT/$name.log" 2>&1 || code=$?
  fi
  status=done
  if (( code == 124 || code == 137 )); then
    status="stopped after $limit s"
  elif (( code > 128 )); then
    status="failed: ended by signal $(( code - 128 ))"
  elif (( code )); then
    status="failed: $(tail -n 1 -- "$OUT/$name.log" | cut -c 1-200)"
  fi
  if (( code )); then
    FAILED=$(( FAILED + 1 ))
    say "$name: $status"
  fi
  printf '%s\n' "$status" $(( SECONDS - started )) "$command" > "$file"
}

# skip NAME REASON: record a part that cannot run here.
skip() {
  say "$1: skipped: $2"
  printf '%s\n' "skipped: $2" 0 > "$OUT/$1.status"
}

# bench NAME LIMIT SCRIPT ARGUMENTS...: run a benchmark of this folder into OUT/NAME.json.
bench() {
  local name="$1" limit="$2" script="$3"
  shift 3
  part "$name" "$limit" "$PYTHON" "$BENCHMARKS/$script.py" "$@" --json "$OUT/$name.json"
}

# has MODULE: whether Python can import it.
has() { "$PYTHON" -c "import $1" > /dev/null 2>&1; }

# finish DRY_RUN: write and print the page, and fail if a part failed.
finish() {
  "$PYTHON" "$BENCHMARKS/summarize.py" "$OUT" ${1:+--dry-run} || fail "no summary (see above)"
  say "written: $OUT/benchmarks.md and $OUT/benchmarks.json"
  (( FAILED == 0 )) || fail "$FAILED part(s) failed; their logs: $OUT/NAME.log"
}
