# A part of sigmorphon2018_medium: ten languages, those named in LANGUAGES, or those in RAW_DIR. S2S
# uses all languages.

PART=yes
source "$EXAMPLES/datasets/sigmorphon2018_medium.sh"
