#!/bin/bash
# Guess: The stream helper of the openai client joins content, takes a repeated role, id or name once, and keeps the
# last value of fields that it does not know.
# Version: openai 3.57.0
# Behaviour: Every text in a delta is joined and every number added: a server that repeats the role in each chunk
# gives 'assistantassistant', a repeated call id and name double, an unknown integer is summed. Unknown members beside
# the delta (token_ids, stop_reason) keep the value of the first chunk that has them.
# Output seen: the text behind EXPECTED below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  openai==3.57.0
cat >"$folder/try.py" <<'PYTHON'
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from openai import OpenAI


def call(**members):
    return {"tool_calls": [{"index": 0, "type": "function", **members}]}


STREAMS = {
    "role": [({"role": "assistant", "content": "a"}, {}), ({"role": "assistant", "content": "b"}, {})],
    "call": [(call(id="c1", function={"name": "f", "arguments": "{"}), {}),
             (call(id="c1", function={"name": "f", "arguments": "}"}), {})],
    "unknown": [({"content": "a", "token_id": 5, "reasoning_content": "x"}, {"token_ids": [5], "stop_reason": None}),
                ({"content": "b", "token_id": 7, "reasoning_content": "y"}, {"token_ids": [7], "stop_reason": 2})]}


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for delta, beside in STREAMS[body["messages"][0]["content"]] + [({}, {"finish_reason": "stop"})]:
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "x",
                     "choices": [{"index": 0, "delta": delta, "finish_reason": None, **beside}]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Server)
Thread(target=server.serve_forever, daemon=True).start()
client = OpenAI(api_key="none", base_url=f"http://127.0.0.1:{server.server_port}", max_retries=0)
for name in STREAMS:
    with client.chat.completions.stream(model="x", messages=[{"role": "user", "content": name}]) as stream:
        choice = stream.get_final_completion().choices[0].to_dict()
    message = choice.pop("message")
    calls = [{k: c[k] for k in ("id", "type")} | {"name": c["function"]["name"]} for c in message["tool_calls"] or []]
    print(name, {k: message[k] for k in ("role", "content", "reasoning_content", "token_id") if message.get(k)}, calls,
          {k: choice[k] for k in ("token_ids", "stop_reason") if k in choice})
PYTHON
cat >"$folder/expected" <<'EXPECTED'
role {'role': 'assistantassistant', 'content': 'ab'} [] {}
call {} [{'id': 'c1c1', 'type': 'function', 'name': 'ff'}] {}
unknown {'content': 'ab', 'reasoning_content': 'xy', 'token_id': 12} [] {'token_ids': [5], 'stop_reason': None}
EXPECTED
mkdir "$folder/work"
"$folder/venv/bin/python" "$folder/try.py" "$folder/work" >"$folder/seen" 2>"$folder/errors" || {
  cat "$folder/errors"
  exit 1
}
diff "$folder/expected" "$folder/seen" || {
  echo "findings/openai_stream_fields.sh: the behaviour changed (above: expected and seen)"
  exit 1
}
cat "$folder/seen"
