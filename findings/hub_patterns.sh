#!/bin/bash
# Guess: allow_patterns of huggingface_hub are those of a shell or .gitignore: * stays within a folder, **/ also
# stands for no folder, the name of a folder means what is in it.
# Version: huggingface_hub 2.4.0
# Behaviour: * crosses folders: *.safetensors also fetches original/consolidated.safetensors (the weights twice).
# **/*.json leaves out the top folder's config.json. A folder without its closing slash selects nothing, and nothing
# is said.
# Output seen: the text behind EXPECTED below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  huggingface_hub==2.4.0
cat >"$folder/try.py" <<'PYTHON'
from huggingface_hub.utils import filter_repo_objects

files = ["config.json", "model.safetensors", "original/consolidated.safetensors", "original/params.json"]
for pattern in ("*.safetensors", "**/*.json", "original", "original/"):
    print(pattern, list(filter_repo_objects(files, allow_patterns=[pattern])))
PYTHON
cat >"$folder/expected" <<'EXPECTED'
*.safetensors ['model.safetensors', 'original/consolidated.safetensors']
**/*.json ['original/params.json']
original []
original/ ['original/consolidated.safetensors', 'original/params.json']
EXPECTED
mkdir "$folder/work"
"$folder/venv/bin/python" "$folder/try.py" "$folder/work" >"$folder/seen" 2>"$folder/errors" || {
  cat "$folder/errors"
  exit 1
}
diff "$folder/expected" "$folder/seen" || {
  echo "findings/hub_patterns.sh: the behaviour changed (above: expected and seen)"
  exit 1
}
cat "$folder/seen"
