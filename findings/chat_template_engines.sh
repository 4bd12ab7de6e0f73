#!/bin/bash
# Guess: Without trim_blocks, a chat template renders the same text in transformers, plain jinja2 and minijinja:
# tojson is JSON, numbers print as Python prints them, a string is a sequence.
# Version: transformers 5.24.0, Jinja2 3.1.6, minijinja 3.1.0
# Behaviour: tojson gives three texts: transformers keeps order and characters, jinja2 sorts keys and escapes <>&',
# minijinja escapes only. minijinja prints 1e20 and 1e-7 without exponents and calls neither a string nor a dict a
# sequence.
# Output seen: the text behind EXPECTED below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  transformers==5.24.0 Jinja2==3.1.6 minijinja==3.1.0
cat >"$folder/try.py" <<'PYTHON'
import jinja2
import minijinja
from transformers.utils.chat_template_utils import render_jinja_template

values = {"call": {"query": "a<b & c", "limit": 1}, "text": "abc", "large": 1e20, "small": 1e-7}
for template in ("{{ call|tojson }}", "{{ large }} {{ small }}", "{{ text is sequence }} {{ call is sequence }}"):
    print(template)
    rendered, _ = render_jinja_template([[{"role": "user", "content": ""}]], chat_template=template, **values)
    print("  transformers", rendered[0])
    print("  jinja2      ", jinja2.Environment().from_string(template).render(**values))
    print("  minijinja   ", minijinja.Environment().render_str(template, **values))
PYTHON
cat >"$folder/expected" <<'EXPECTED'
{{ call|tojson }}
  transformers {"query": "a<b & c", "limit": 1}
  jinja2       {"limit": 1, "query": "a\u003cb \u0026 c"}
  minijinja    {"query": "a\u003cb \u0026 c", "limit": 1}
{{ large }} {{ small }}
  transformers 1e+20 1e-07
  jinja2       1e+20 1e-07
  minijinja    100000000000000000000.0 0.0000001
{{ text is sequence }} {{ call is sequence }}
  transformers True True
  jinja2       True True
  minijinja    False False
EXPECTED
mkdir "$folder/work"
"$folder/venv/bin/python" "$folder/try.py" "$folder/work" >"$folder/seen" 2>"$folder/errors" || {
  cat "$folder/errors"
  exit 1
}
diff "$folder/expected" "$folder/seen" || {
  echo "findings/chat_template_engines.sh: the behaviour changed (above: expected and seen)"
  exit 1
}
cat "$folder/seen"
