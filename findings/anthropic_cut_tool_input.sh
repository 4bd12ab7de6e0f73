#!/bin/bash
# Guess: Where max_tokens ends an answer inside a tool call, the stream helper of the anthropic client leaves the text
# it has received, or says that the JSON is incomplete.
# Version: anthropic 2.14.0
# Behaviour: get_final_message() returns a dict that looks whole: the member that was cut is left out, of a list its
# last element, and a number may be a prefix of the real one. Only stop_reason max_tokens tells; a number of 1e400
# becomes inf.
# Output seen: the text behind EXPECTED below.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  anthropic==2.14.0
cat >"$folder/try.py" <<'PYTHON'
import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from anthropic import Anthropic

START = {"type": "message_start", "message": {
    "id": "m", "type": "message", "role": "assistant", "content": [], "model": "x", "stop_reason": None,
    "stop_sequence": None, "usage": {"input_tokens": 5, "output_tokens": 1}}}
INPUTS = ['{"path": "/tmp/a", "text": "hel', '{"lines": ["a", "b', '{"n": 12', '{"x": 1e400}']


class Server(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = INPUTS[int(body["messages"][0]["content"])]
        events = [START, {"type": "content_block_start", "index": 0, "content_block": {
            "type": "tool_use", "id": "t", "name": "write", "input": {}}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": said}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "max_tokens", "stop_sequence": None},
             "usage": {"output_tokens": 9}}, {"type": "message_stop"}]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write("".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode())

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Server)
Thread(target=server.serve_forever, daemon=True).start()
client = Anthropic(api_key="none", base_url=f"http://127.0.0.1:{server.server_port}", max_retries=0)
for i, said in enumerate(INPUTS):
    with client.messages.stream(model="x", max_tokens=9, messages=[{"role": "user", "content": str(i)}]) as stream:
        message = stream.get_final_message()
    print(said, "->", message.content[0].input, message.stop_reason)
PYTHON
cat >"$folder/expected" <<'EXPECTED'
{"path": "/tmp/a", "text": "hel -> {'path': '/tmp/a'} max_tokens
{"lines": ["a", "b -> {'lines': ['a']} max_tokens
{"n": 12 -> {'n': 12} max_tokens
{"x": 1e400} -> {'x': inf} max_tokens
EXPECTED
mkdir "$folder/work"
"$folder/venv/bin/python" "$folder/try.py" "$folder/work" >"$folder/seen" 2>"$folder/errors" || {
  cat "$folder/errors"
  exit 1
}
diff "$folder/expected" "$folder/seen" || {
  echo "findings/anthropic_cut_tool_input.sh: the behaviour changed (above: expected and seen)"
  exit 1
}
cat "$folder/seen"
