# Shared by the recipes and their stages: folders, messages, locks, and the record of settings that
# decides whether an artefact can be reused. Source it, do not run it.
# Written for bash 3.2 and later.
set -euo pipefail

EXAMPLES="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
ROOT="$(dirname -- "$EXAMPLES")"

if [[ -z "${PYTHON:-}" ]]; then
  PYTHON=python3
  if [[ -x "$ROOT/.venv/bin/python" ]]; then PYTHON="$ROOT/.venv/bin/python"; fi
fi
# An absolute path, because the stages change folders.
if [[ "$PYTHON" == */* && "$PYTHON" != /* ]]; then PYTHON="$PWD/$PYTHON"; fi
export PYTHON

# The workers that fairseq starts import fairseq_sparse by name, installed or not.
export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1 PYTHONIOENCODING=utf-8

# fairseq uses deprecated parts of hydra, which warns five times per command; users cannot help it.
# The last of these modules, runpy, is the one that runs fairseq's modules.
for module in hydra.compose hydra.experimental.compose hydra.experimental.initialize \
  hydra.core.default_element runpy; do
  PYTHONWARNINGS="ignore::UserWarning:$module${PYTHONWARNINGS:+,$PYTHONWARNINGS}"
done
export PYTHONWARNINGS

# Print "PROCESS PARENT" for every process.
all_processes() {
  ps -A -o pid= -o ppid= 2> /dev/null || sed -s -e 's/ (.*) [A-Z] / /' /proc/[0-9]*/stat 2> /dev/null
}

# When a script ends, however it does, so do the processes that it has started: a signal to the
# script alone would leave its training alive. What else must be done at the end goes into at_exit.
at_exit() { :; }
stop_children() {
  local children
  children="$(all_processes | awk -v top="$$" '
    { parent[$1] = $2 }
    END {
      for (pid in parent) {
        above = parent[pid]
        while (above in parent && above != top && above > 1) above = parent[above]
        if (above == top) print pid
      }
    }')"
  # shellcheck disable=SC2086
  kill $children 2> /dev/null # those of the line above have ended
}
trap 'stop_children || true; rm -f -- ${PARTIALS[@]+"${PARTIALS[@]}"}; at_exit' EXIT

# Copy the output of a command, without the line that fairseq prints if tensorboardX is missing.
drop_noise() {
  grep --line-buffered -av 'Please install tensorboardX' || true
}

# Make a file beside FILE that will replace it, and set partial to its name: begin_file FILE. It has
# a name of its own, since another run may write FILE, too; it is removed at the end.
PARTIALS=()
begin_file() {
  partial="$(mktemp "$1.partial.XXXXXXXX")" || fail "$1 cannot be written (see above)"
  PARTIALS+=("$partial")
  chmod "$(printf '%o' "$(( 0666 & ~$(umask) ))")" "$partial"
}

say() { printf '[%s] %s\n' "${STAGE:-run}" "$*" >&2; }

fail() {
  printf '[%s] error: %s\n' "${STAGE:-run}" "$*" >&2
  exit 1
}

# Report an error in the command line and exit; the script must define a function usage.
bad_usage() {
  printf '%s: %s\n\n' "${0##*/}" "$1" >&2
  usage >&2
  exit 2
}

# Check that an option has a value: option_value "$@", with the option first.
option_value() {
  (( $# > 1 )) && [[ -n "$2" ]] || bad_usage "$1 needs a value"
}

# Print the default configuration of a data set.
default_config() {
  "$PYTHON" -c 'import torch; print("gpu" if torch.cuda.is_available() else "cpu")'
}

# The names of the files NAME.sh in a folder, on one line.
names_in() {
  local path names=""
  for path in "$1"/*.sh; do
    path="${path##*/}"
    names="$names ${path%.sh}"
  done
  printf '%s' "${names# }"
}

# Return whether NAME.sh is a file in a folder of the recipes: known FOLDER NAME.
known() {
  [[ "$2" != */* && -f "$EXAMPLES/$1/$2.sh" ]]
}

# Refuse a folder whose name would be split by fairseq or in a list of runs.
check_folder() {
  [[ "$1" != *:* ]] || fail "fairseq takes ':' for the end of a path; use another folder: $1"
  [[ "$1" != *[$'\t\n\r']* ]] \
    || fail "the name of a folder must have no tab or line break; use another: $(printf '%q' "$1")"
}

# Print the absolute path of a folder, creating it: make_absolute FOLDER OPTION.
make_absolute() {
  check_folder "$1"
  mkdir -p -- "$1" || fail "$2: this folder cannot be made (see above); choose another"
  (CDPATH='' cd -- "$1" && pwd) || fail "$2: this folder cannot be used (see above); choose another"
}

# Print one sha256 per file in the format of sha256sum, with file names only.
sha256_of() {
  "$PYTHON" - "$@" <<'PY'
import hashlib, os, sys
for path in sys.argv[1:]:
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        for block in iter(lambda: handle.read(1 << 20), b""):
            digest.update(block)
    print(digest.hexdigest(), "", os.path.basename(path))
PY
}

# Wait until no other process works in FOLDER, then keep others out. The lock belongs to descriptor 9,
# which all processes that are started later inherit: it lasts as long as one of them works, even
# after this shell was killed.
lock_folder() {
  mkdir -p -- "$1"
  [[ -w "$1" ]] || fail "$1 is not writable; choose another folder"
  [[ ! -L "$1/.lock" ]] || rm -f -- "$1/.lock" # of an earlier version
  exec 9<> "$1/.lock"
  # Python, because macOS has no command flock.
  "$PYTHON" -c '
import fcntl, glob, os, sys

def holders():
    for path in glob.glob("/proc/[0-9]*/fd/9"):
        try:
            with open(path.replace("/fd/", "/fdinfo/")) as info:
                if os.path.samestat(os.stat(path), os.fstat(0)) and "FLOCK" in info.read():
                    yield path.split("/")[2]
        except OSError:  # it has ended, or is of another user
            pass

try:
    fcntl.flock(0, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    found = " ".join(sorted(holders(), key=int)) or "lsof %s/.lock lists them" % sys.argv[1]
    print("[%s] waiting for the processes that work in %s (%s)" % (sys.argv[2], sys.argv[1], found),
          file=sys.stderr, flush=True)
    fcntl.flock(0, fcntl.LOCK_EX)
' "$1" "${STAGE:-run}" <&9 || fail "$1 cannot be locked (see above)"
}

check_finished() {
  [[ -f "$1/summary.json" && -f "$1/average.pt" ]] \
    || fail "$1 is not a finished run: it has no summary.json or no average.pt"
}

# Set DATASET, DATASET_NOTE, CONFIG, SETTINGS and VARIANT to those of the first of several finished
# runs on one data set, and VARIANT_NAME to all variants: recipe_of RUN_DIR...
recipe_of() {
  local recipe
  recipe="$("$PYTHON" - "$@" <<'PY'
import json, sys
from pathlib import Path

runs = [json.loads((Path(path) / "summary.json").read_text("utf-8")) for path in sys.argv[1:]]
for name in ("dataset", "settings"):
    values = {run.get(name, "") for run in runs}
    if len(values) > 1:
        sys.exit(f"the runs differ in {name}: {', '.join(sorted(values))}")
variants = list(dict.fromkeys(run.get("variant_name") or run["variant"] for run in runs))
first = runs[0]
print(first["dataset"], first.get("dataset_note", ""), first["variant"], sep="\n")
print(first["config"], first.get("settings", ""), sep="\n")
print(" + ".join(variants))
PY
  )" || fail "the runs do not go together (see above)"
  {
    read -r DATASET; read -r DATASET_NOTE; read -r VARIANT; read -r CONFIG; read -r SETTINGS
    read -r VARIANT_NAME
  } <<<"$recipe"
}

# Print flags with their values, one per line, so that a difference names the flag.
flags_as_lines() {
  local argument line=""
  for argument in "$@"; do
    if [[ "$argument" == --* && -n "$line" ]]; then
      printf '%s\n' "$line"
      line=""
    fi
    line="$line${line:+ }$argument"
  done
  printf '%s\n' "$line"
}

# Print the differences between the settings recorded in FILE and SETTINGS, if any.
settings_difference() {
  { diff -- "$1" <(printf '%s\n' "$2") || true; } \
    | sed -n -e 's/^< /    was: /p' -e 's/^> /    now: /p'
}

write_settings() {
  local partial
  begin_file "$1"
  printf '%s\n' "$2" > "$partial"
  mv -f -- "$partial" "$1"
}

# Return whether ARTEFACT exists and was made with SETTINGS: is_current ARTEFACT FILE SETTINGS.
is_current() {
  [[ -e "$1" && -f "$2" && -z "$(settings_difference "$2" "$3")" ]]
}

# End the stage if ARTEFACT exists and was made with SETTINGS; report settings that have changed:
# skip_if_done ARTEFACT FILE SETTINGS, with FILE the record of the settings it was made with.
skip_if_done() {
  local difference
  [[ -e "$1" && -f "$2" ]] || return 0
  difference="$(settings_difference "$2" "$3")"
  if [[ -z "$difference" ]]; then
    say "done already: $1"
    exit 0
  fi
  say "$1 was made with other settings; making it again:"
  printf '%s\n' "$difference" >&2
}

# Remove ARTEFACT and the run's summary, which includes its results, and record SETTINGS in FILE:
# begin_anew ARTEFACT FILE SETTINGS. Stages that new settings can make fail call this late, so that
# a mistyped setting costs no results.
begin_anew() {
  rm -f -- "$1" "$RUN_DIR/summary.json"
  mkdir -p -- "$(dirname -- "$2")"
  write_settings "$2" "$3"
}

# Remove flags that take no value from DATASET_FLAGS: drop_flags FLAG...
drop_flags() {
  local flag kept=()
  for flag in "${DATASET_FLAGS[@]}"; do
    [[ " $* " == *" $flag "* ]] || kept+=("$flag")
  done
  DATASET_FLAGS=("${kept[@]}")
}

# Load the variables of run.sh, and the files of the data set, the settings and the variant.
load_recipe() {
  : "${DATASET:?start the stages with run.sh}" "${VARIANT:?}" "${CONFIG:?}" "${DATA_DIR:?}" "${RUN_DIR:?}"
  PREPARED="$DATA_DIR/prepared"
  USER_DIR="$ROOT/fairseq_sparse"
  SETTINGS_DIR="$RUN_DIR/settings"
  DEVICE_FLAGS=()
  MAKE_RAW=()
  # Defaults of data sets; docs/recipes.md lists the other values.
  TEXT=bpe DICTIONARY=joined TOKENIZER=moses CHECKPOINTS=last SCORE=bleu
  BATCH_SIDE=longer EXPONENTIAL="" ANALYZE_VALID="" DEFAULT_TAU=""
  SCORE_FLAGS=() TASK_FLAGS=()
  if [[ "$CONFIG" == cpu ]]; then
    DEVICE_FLAGS=(--cpu)
    # glibc returns every freed tensor to the system and requests the memory again, which costs a
    # fifth of the time on a CPU; these two variables make it keep the memory.
    export MALLOC_MMAP_MAX_="${MALLOC_MMAP_MAX_:-0}"
    export MALLOC_TRIM_THRESHOLD_="${MALLOC_TRIM_THRESHOLD_:-4000000000}"
  fi
  # The environment wins over the data set and the settings.
  local name kept=()
  for name in AVERAGE_LAST BATCH_TOKENS DEVICE_TOKENS LABEL_SMOOTHING; do
    if [[ -n "${!name:-}" ]]; then kept+=("$name=${!name}"); fi
  done
  # shellcheck source=/dev/null
  source "$EXAMPLES/datasets/$DATASET.sh"
  if [[ -n "${SETTINGS:-}" ]]; then
    # shellcheck source=/dev/null
    source "$EXAMPLES/settings/$SETTINGS.sh"
  fi
  for name in ${kept[@]+"${kept[@]}"}; do printf -v "${name%%=*}" '%s' "${name#*=}"; done
  AVERAGE_LAST="${AVERAGE_LAST:-}" LABEL_SMOOTHING="${LABEL_SMOOTHING:-0}"
  if (( ! ${#TASK_FLAGS[@]} )); then
    TASK_FLAGS=(--task translation_sparse --source-lang "$SOURCE_LANG" --target-lang "$TARGET_LANG")
  fi
  # shellcheck source=/dev/null
  source "$EXAMPLES/variants/$VARIANT.sh"
}

require_prepared() {
  [[ -d "$PREPARED/bin" ]] || fail "no prepared data in $PREPARED: run the stage prepare first"
}

require_file() {
  [[ -f "$1" ]] || fail "$1 is missing: run the stage $2 first"
}

# Require that models were trained on the prepared data: require_trained_on_data MODEL...
require_trained_on_data() {
  local path data
  data="data $(sha256_of "$PREPARED/settings" | cut -d ' ' -f 1)"
  for path in "$@"; do
    path="$(dirname -- "$path")"
    grep -qsxF "$data" "$path/settings/train" || fail "$path was not trained on the data in $PREPARED"
  done
}

# Print the path of the test set's score; "measures" is for language models.
score_file() {
  if [[ "$SCORE" == accuracy || "$SCORE" == measures ]]; then
    printf '%s' "$RUN_DIR/$SCORE.json"
  else
    printf '%s' "$RUN_DIR/bleu.json"
  fi
}
