# Tiny Shakespeare: 40,000 lines of Shakespeare's plays, as in char-rnn; here for a language model of
# BPE units. A text is a speech: the lines between two empty ones. Public domain.
# Home: https://github.com/karpathy/char-rnn. The split is ours: the last twentieth of the speeches
# is the test set, and the twentieth before it the validation set.

BASE_URL="${BASE_URL:-https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare}"
CHECKSUMS="${CHECKSUMS:-$EXAMPLES/datasets/shared/tinyshakespeare.archives}"
TEXT_FLAGS=(--single input.txt --paragraphs)
BPE_MERGES="${BPE_MERGES:-4000}"
TOKENS_PER_SAMPLE=256
SAMPLE_BREAK_MODE=none
CONTEXT_WINDOW=128
PROMPTS=()
source "$EXAMPLES/datasets/shared/language_model.sh"
