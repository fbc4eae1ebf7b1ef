#!/usr/bin/env bash
# `longshore check model` of every golden model beside transformers: verify_golden.sh LONGSHORE PYTHON.
set -euo pipefail
for model in "$(dirname "${BASH_SOURCE[0]}")"/golden/*; do
  "$1" check model "$model" --python "$2" --tokens 48
done
