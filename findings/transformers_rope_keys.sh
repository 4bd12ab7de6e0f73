#!/bin/bash
# Guess: A config.json that transformers reads and writes keeps rope_theta and rope_scaling where older software looks
# for them; rope_parameters, the newer key, wins where both are there; an unknown rope_type is refused.
# Version: transformers 5.24.0
# Behaviour: Both old keys are gone from what it writes (software that reads rope_theta falls back to its default of
# 10000). The older rope_scaling replaces rope_parameters whole. A rope_theta inside the section beats the one beside
# it. type 'su', longrope's first name, is kept as it is with a warning.
# Output seen: the text behind EXPECTED below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  transformers==5.24.0
cat >"$folder/try.py" <<'PYTHON'
from transformers import LlamaConfig

yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
for name, keys in (("scaling", {"rope_scaling": yarn}),
                   ("both", {"rope_scaling": yarn, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
                   ("theta inside", {"rope_scaling": {**yarn, "rope_theta": 1e6}}),
                   ("su", {"rope_scaling": {"type": "su", "factor": 4.0}})):
    config = LlamaConfig(rope_theta=5e5, max_position_embeddings=16384, **keys).to_dict()
    section = config["rope_parameters"]
    print(name, [k for k in ("rope_theta", "rope_scaling") if k in config],
          {k: section[k] for k in ("rope_type", "factor", "rope_theta")})
PYTHON
cat >"$folder/expected" <<'EXPECTED'
scaling [] {'rope_type': 'yarn', 'factor': 4.0, 'rope_theta': 500000.0}
both [] {'rope_type': 'yarn', 'factor': 4.0, 'rope_theta': 500000.0}
theta inside [] {'rope_type': 'yarn', 'factor': 4.0, 'rope_theta': 1000000.0}
su [] {'rope_type': 'su', 'factor': 4.0, 'rope_theta': 500000.0}
EXPECTED
mkdir "$folder/work"
"$folder/venv/bin/python" "$folder/try.py" "$folder/work" >"$folder/seen" 2>"$folder/errors" || {
  cat "$folder/errors"
  exit 1
}
diff "$folder/expected" "$folder/seen" || {
  echo "findings/transformers_rope_keys.sh: the behaviour changed (above: expected and seen)"
  exit 1
}
cat "$folder/seen"
