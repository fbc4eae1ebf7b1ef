#!/usr/bin/env bash
# `longshore verify` of every golden model beside transformers: verify_golden.sh LONGSHORE PYTHON.
set -euo pipefail
for model in "$(dirname "${BASH_SOURCE[0]}")"/golden/*; do
  "$1" verify "$model" --python "$2" --tokens 48
done
