# WikiText-103: 103 million words of good and featured articles of Wikipedia, in a vocabulary of
# 267,735 words. CC BY-SA 3.0.
# Merity, Xiong, Bradbury, Socher: Pointer Sentinel Mixture Models (ICLR 2017).
# Not run here: on a CPU it would take weeks. By calculation, it needs a GPU with 24 GB, because
# the output has the whole vocabulary.

CHECKSUMS="${CHECKSUMS:-$EXAMPLES/datasets/shared/wikitext103.archives}"
archive=wikitext-103-v1.zip!wikitext-103
TEXT_FLAGS=(
  --train "$archive/wiki.train.tokens" --valid "$archive/wiki.valid.tokens"
  --test "$archive/wiki.test.tokens" --tokens space
)
TOKENIZER=space
BPE_MERGES="${BPE_MERGES:-}"
TOKENS_PER_SAMPLE=512
SAMPLE_BREAK_MODE=none
CONTEXT_WINDOW=400
PROMPTS=()
source "$EXAMPLES/datasets/shared/language_model.sh"
