#!/bin/bash
# Guess: tokenizer.json decides how text is cut, tokenizer_config.json whether a BOS is added: add_bos_token true adds
# one, false adds none, and tokenizer_class only picks a Python class.
# Version: transformers 5.24.0, tokenizers 0.23.3, gguf 0.19.0
# Behaviour: The other way round. tokenizer_class Qwen2Tokenizer replaces the pre-tokenizer of the file by Qwen 2's
# (digits one by one). add_bos_token does nothing, whatever it says: only the template of the file's post-processor
# counts. gguf's SpecialVocab, which llama.cpp's converter uses, lets add_bos_token win: the GGUF file of a folder
# adds another BOS than the folder does.
# Output seen: the text behind EXPECTED below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  transformers==5.24.0 tokenizers==0.23.3 gguf==0.19.0 numpy==2.3.5
cat >"$folder/try.py" <<'PYTHON'
import json
import sys
from gguf import SpecialVocab
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer

folder = sys.argv[1]
pieces = ["<s>"] + sorted(pre_tokenizers.ByteLevel.alphabet()) + ["12", "123"]
tokenizer = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[("1", "2"), ("12", "3")]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens(["<s>"])
for template in (False, True):
    if template:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(folder + "/tokenizer.json")
    for name in ("PreTrainedTokenizerFast", "LlamaTokenizer", "Qwen2Tokenizer"):
        for add_bos in (False, True):
            config = {"tokenizer_class": name, "bos_token": "<s>", "add_bos_token": add_bos}
            with open(folder + "/tokenizer_config.json", "w") as f:
                json.dump(config, f)
            loaded = AutoTokenizer.from_pretrained(folder)
            ids = loaded("123").input_ids
            gguf_bos = SpecialVocab(folder).add_special_token.get("bos")
            print("template" if template else "no template", name, add_bos, loaded.convert_ids_to_tokens(ids),
                  "gguf adds BOS:", gguf_bos)
PYTHON
cat >"$folder/expected" <<'EXPECTED'
no template PreTrainedTokenizerFast False ['123'] gguf adds BOS: False
no template PreTrainedTokenizerFast True ['123'] gguf adds BOS: True
no template LlamaTokenizer False ['123'] gguf adds BOS: False
no template LlamaTokenizer True ['123'] gguf adds BOS: True
no template Qwen2Tokenizer False ['1', '2', '3'] gguf adds BOS: False
no template Qwen2Tokenizer True ['1', '2', '3'] gguf adds BOS: True
template PreTrainedTokenizerFast False ['<s>', '123'] gguf adds BOS: False
template PreTrainedTokenizerFast True ['<s>', '123'] gguf adds BOS: True
template LlamaTokenizer False ['<s>', '123'] gguf adds BOS: False
template LlamaTokenizer True ['<s>', '123'] gguf adds BOS: True
template Qwen2Tokenizer False ['<s>', '1', '2', '3'] gguf adds BOS: False
template Qwen2Tokenizer True ['<s>', '1', '2', '3'] gguf adds BOS: True
EXPECTED
mkdir "$folder/work"
"$folder/venv/bin/python" "$folder/try.py" "$folder/work" >"$folder/seen" 2>"$folder/errors" || {
  cat "$folder/errors"
  exit 1
}
diff "$folder/expected" "$folder/seen" || {
  echo "findings/transformers_tokenizer_config.sh: the behaviour changed (above: expected and seen)"
  exit 1
}
cat "$folder/seen"
