#!/usr/bin/env bash
# fairseq-sparse run; --help lists its options.
source "$(dirname -- "${BASH_SOURCE[0]}")/python.sh"
exec "$PYTHON" -m fairseq_sparse run "$@"
