#!/bin/bash
# Guess: transformers' LlamaTokenizer, made from a SentencePiece model, gives the ids of the sentencepiece library,
# since the highest score merges first in both.
# Version: sentencepiece 0.2.3, transformers 5.24.0; the model is tokenizer.model.v1 of mistral-common 1.13.1
# Behaviour: Runs of blanks have a score of -1e9 in Mistral's model: SentencePiece merges them last. transformers
# merges them first, and cuts a blank off the front. Ids differ from two blanks on, and leading blanks do not survive
# decode().
# Output seen: the text behind EXPECTED below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  sentencepiece==0.2.3 transformers==5.24.0 tokenizers==0.23.3 mistral-common==1.13.1 protobuf==7.36.2
cat >"$folder/try.py" <<'PYTHON'
import os
import shutil
import sys
import mistral_common
import sentencepiece
from transformers import LlamaTokenizer

model = os.path.join(os.path.dirname(mistral_common.__file__), "data", "tokenizer.model.v1")
shutil.copy(model, sys.argv[1] + "/tokenizer.model")
theirs = sentencepiece.SentencePieceProcessor(model_file=model)
ours = LlamaTokenizer.from_pretrained(sys.argv[1])
print("score of two blanks", theirs.get_score(259))
for text in ("a b", "a  b", "  two", "x\n    return"):
    print(ascii(text))
    for name, ids, back in (("sentencepiece", theirs.encode(text), theirs.decode),
                            ("transformers", ours(text, add_special_tokens=False).input_ids, ours.decode)):
        print(" ", name, ids, "back" if back(ids) == text else f"decodes to {back(ids)!a}")
PYTHON
cat >"$folder/expected" <<'EXPECTED'
score of two blanks -1000000000.0
'a b'
  sentencepiece [264, 287] back
  transformers [264, 287] back
'a  b'
  sentencepiece [264, 28705, 287] back
  transformers [264, 259, 28726] back
'  two'
  sentencepiece [259, 989] back
  transformers [259, 10861] decodes to ' two'
'x\n    return'
  sentencepiece [1318, 13, 2287, 604] back
  transformers [1318, 13, 260, 807] back
EXPECTED
mkdir "$folder/work"
"$folder/venv/bin/python" "$folder/try.py" "$folder/work" >"$folder/seen" 2>"$folder/errors" || {
  cat "$folder/errors"
  exit 1
}
diff "$folder/expected" "$folder/seen" || {
  echo "findings/sentencepiece_blank_runs.sh: the behaviour changed (above: expected and seen)"
  exit 1
}
cat "$folder/seen"
