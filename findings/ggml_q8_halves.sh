#!/bin/bash
# Guess: llama.cpp has one rounding for Q8_0: what its file quantiser writes and what its CPU kernels make of
# activations is the same for the same 32 values.
# Version: xllamacpp 2026.10.11549 (llama.cpp within), on x86-64 with AVX2
# Behaviour: The file quantiser rounds halves away from zero, the kernels' form to even: .5, 2.5 and -.5 of a block
# with the largest value 127 become 1, 3, -1 in one and 0, 2, 0 in the other. Bits of the two must not be compared.
# Output seen: the text behind EXPECTED below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  xllamacpp==2026.10.11549 numpy==2.3.5
cat >"$folder/try.py" <<'PYTHON'
import ctypes
import os
import numpy as np
import xllamacpp

library = ctypes.CDLL(os.path.join(os.path.dirname(xllamacpp.__file__), "xllamacpp.abi3.so"))
values = np.zeros(32, np.float32)
values[:6] = [127, 0.5, 1.5, 2.5, -0.5, -1.5]
for name in ("quantize_row_q8_0_ref", "quantize_row_q8_0"):
    block = np.zeros(34, np.uint8)
    function = getattr(library, name)
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    function(values.ctypes.data, block.ctypes.data, 32)
    print(name, block[2:].view(np.int8)[:6].tolist())
PYTHON
cat >"$folder/expected" <<'EXPECTED'
quantize_row_q8_0_ref [127, 1, 2, 3, -1, -2]
quantize_row_q8_0 [127, 0, 2, 2, 0, -2]
EXPECTED
mkdir "$folder/work"
"$folder/venv/bin/python" "$folder/try.py" "$folder/work" >"$folder/seen" 2>"$folder/errors" || {
  cat "$folder/errors"
  exit 1
}
diff "$folder/expected" "$folder/seen" || {
  echo "findings/ggml_q8_halves.sh: the behaviour changed (above: expected and seen)"
  exit 1
}
cat "$folder/seen"
