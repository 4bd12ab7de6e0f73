#!/bin/bash
# Guess: gguf-py's MXFP4 is the nearest value of the format under the block's scale, halves to even as hardware
# rounds, and the block's largest value is kept to within half a step.
# Version: gguf 0.19.0, ml_dtypes 0.6.0, numpy 2.3.5
# Behaviour: Halves go towards zero (3.5 becomes 3, 1.75 becomes 1.5; float4_e2m1fn of ml_dtypes gives 4 and 2), and
# the scale is the power of two below the largest value over 4: 7.9 becomes 6, 24 % off, where the next scale would
# give 8.
# Output seen: the text behind EXPECTED below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  gguf==0.19.0 ml_dtypes==0.6.0 numpy==2.3.5
cat >"$folder/try.py" <<'PYTHON'
import gguf
import ml_dtypes
import numpy as np

kind = gguf.GGMLQuantizationType.MXFP4
block = np.zeros((1, 32), np.float32)
block[0, :8] = [4, 3.5, 2.5, 1.75, 1.25, 0.75, 0.25, -3.5]
print("values   ", block[0, :8].tolist())
print("gguf     ", gguf.quants.dequantize(gguf.quants.quantize(block, kind), kind)[0, :8].tolist())
print("ml_dtypes", block[0, :8].astype(ml_dtypes.float4_e2m1fn).astype(np.float32).tolist())
block[0] = 0
block[0, :2] = [7.9, -7.9]
print("7.9 ->   ", gguf.quants.dequantize(gguf.quants.quantize(block, kind), kind)[0, :2].tolist())
PYTHON
cat >"$folder/expected" <<'EXPECTED'
values    [4.0, 3.5, 2.5, 1.75, 1.25, 0.75, 0.25, -3.5]
gguf      [4.0, 3.0, 2.0, 1.5, 1.0, 0.5, 0.0, -3.0]
ml_dtypes [4.0, 4.0, 2.0, 2.0, 1.0, 1.0, 0.0, -4.0]
7.9 ->    [6.0, -6.0]
EXPECTED
mkdir "$folder/work"
"$folder/venv/bin/python" "$folder/try.py" "$folder/work" >"$folder/seen" 2>"$folder/errors" || {
  cat "$folder/errors"
  exit 1
}
diff "$folder/expected" "$folder/seen" || {
  echo "findings/gguf_mxfp4_halves.sh: the behaviour changed (above: expected and seen)"
  exit 1
}
cat "$folder/seen"
