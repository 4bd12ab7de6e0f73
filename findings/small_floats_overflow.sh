#!/bin/bash
# Guess: Casts of ml_dtypes treat what does not fit alike: all formats without infinity saturate, as the OCP formats'
# quantisers do. A scale of 0 stays the smallest scale, halves round to even.
# Version: ml_dtypes 0.6.0, numpy 2.3.5
# Behaviour: float8_e4m3fn turns what is beyond 464 into NaN, float4_e2m1fn saturates at 6, also for infinity, and
# makes NaN -0. float8_e8m0fnu turns 0 into NaN (a block of zeros becomes NaN) and rounds halves up: 3 becomes 4, 6
# becomes 8.
# Output seen: the text behind EXPECTED below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  ml_dtypes==0.6.0 numpy==2.3.5
cat >"$folder/try.py" <<'PYTHON'
import ml_dtypes
import numpy as np

for kind, values in ((ml_dtypes.float8_e4m3fn, [448, 464, 465, np.inf]),
                     (ml_dtypes.float4_e2m1fn, [6, 7, 1000, np.inf, np.nan]),
                     (ml_dtypes.float8_e8m0fnu, [0, 1.5, 3, 5, 6])):
    with np.errstate(all="ignore"):
        cast = np.array(values, np.float32).astype(kind).astype(np.float32)
    print(kind.__name__, values, "->", cast.tolist())
PYTHON
cat >"$folder/expected" <<'EXPECTED'
float8_e4m3fn [448, 464, 465, inf] -> [448.0, 448.0, nan, nan]
float4_e2m1fn [6, 7, 1000, inf, nan] -> [6.0, 6.0, 6.0, 6.0, -0.0]
float8_e8m0fnu [0, 1.5, 3, 5, 6] -> [nan, 2.0, 4.0, 4.0, 8.0]
EXPECTED
mkdir "$folder/work"
"$folder/venv/bin/python" "$folder/try.py" "$folder/work" >"$folder/seen" 2>"$folder/errors" || {
  cat "$folder/errors"
  exit 1
}
diff "$folder/expected" "$folder/seen" || {
  echo "findings/small_floats_overflow.sh: the behaviour changed (above: expected and seen)"
  exit 1
}
cat "$folder/seen"
