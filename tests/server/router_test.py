#!/usr/bin/env python3
"""Two replicas of `mneme serve` behind the routers of vLLM and SGLang, on loopback.

usage: router_test.py MNEME MODEL VENV [--json FILE]

Makes the virtual environment VENV at its first run. Exit code 77: the package index cannot be reached, nothing was tested.
"""
import http.client
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time

from client_venv import expect, run_inside

PINNED = ["vllm-router==0.1.17", "sglang-router==0.3.2"]
DOCUMENTS, QUESTIONS = 8, 64
PATIENCE = 240  # seconds, of any one wait


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def request(address, method, path, body=None, timeout=PATIENCE):
    """Status and text; status 0: no answer."""
    connection = http.client.HTTPConnection(address, timeout=timeout)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    except OSError as e:
        return 0, str(e)
    except http.client.HTTPException as e:
        return 0, repr(e)
    finally:
        connection.close()


class Replica:
    """One `mneme serve`, with events of its prefix cache."""

    def __init__(self, program, model, *options):
        command = [program, "serve", "-m", model, "--port", "0", "-c", "16384", "--quiet", "--no-pin", "--threads", "1"]
        command += ["--served-model-name", "needle", "--kv-events", "0", "--kv-events-replay", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
        self.address = self.process.stdout.readline().split()[-1].removeprefix("http://")
        self.url = "http://" + self.address
        self.info = json.loads(request(self.address, "GET", "/server_info")[1])

    def metric(self, name):
        text = request(self.address, "GET", "/metrics")[1]
        return float(re.search(r"^mneme:%s{[^}]*} (\S+)$" % name, text, re.MULTILINE).group(1))

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Router:
    """A router over replicas, ready; its port was free a moment before."""

    def __init__(self, venv, name, replicas, *options):
        self.name = name
        for _ in range(5):
            port, metrics = free_port(), free_port()
            command = [os.path.join(venv, "bin", name), *(["launch"] if name == "sglang-router" else [])]
            command += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
            command += ["--worker-urls", *[r.url for r in replicas], "--worker-startup-check-interval", "1", *options]
            self.log = open("router.log", "w+")
            self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
            self.address = "127.0.0.1:%d" % port
            if self._ready():
                return
            self.stop()
        raise AssertionError("%s did not start: %s" % (name, open("router.log").read()[-2000:]))

    def _ready(self):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            status, text = request(self.address, "POST", "/v1/completions", body("ready?", 1), timeout=20)
            expect(status < 400 or status >= 500, (self.name, status, text))
            if status == 200:
                return True
            time.sleep(0.2)
        return False

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()


def body(prompt, max_tokens=4):
    return {"model": "needle", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}


def document(n, words=900):
    """Text that begins differently from any other's."""
    return " ".join("%s%d" % ("abcdefghijklmnop"[n], (i * 37 + n * 11) % 9973) for i in range(words))


def ask_all(address, prompts, workers, max_tokens=4):
    """Answers by number of prompt, asked by so many threads at once: (status, answer or text)."""
    todo, answers = queue.Queue(), [None] * len(prompts)
    for i in range(len(prompts)):
        todo.put(i)

    def work():
        while True:
            try:
                i = todo.get_nowait()
            except queue.Empty:
                return
            status, text = request(address, "POST", "/v1/completions", body(prompts[i], max_tokens))
            answers[i] = (status, json.loads(text) if status == 200 else text)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for t in threads:
        t.start()
    return threads, answers


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def readings(venv, name, replicas, options, salt):
    """How often each of 8 documents is read for 64 questions; the first eight, one a document, come at once."""
    router = Router(venv, name, replicas, *options)
    try:
        documents = [document(n) + salt for n in range(DOCUMENTS)]
        documents = [salt + d for d in documents]
        prompts = ["%s\n\nquestion %d?" % (documents[i % DOCUMENTS], i) for i in range(QUESTIONS)]
        before = [r.metric("prompt_tokens_total") - r.metric("prefix_cache_hits_total") for r in replicas]
        reads = [0] * DOCUMENTS
        for first, last in ((0, DOCUMENTS), (DOCUMENTS, QUESTIONS)):
            threads, answers = ask_all(router.address, prompts[first:last], DOCUMENTS)
            for t in threads:
                t.join()
            for i, (status, answer) in enumerate(answers):
                expect(status == 200, (name, status, answer))
                reads[(first + i) % DOCUMENTS] += cached(answer) < answer["usage"]["prompt_tokens"] // 2
            time.sleep(1)  # events take some milliseconds
        computed = [r.metric("prompt_tokens_total") - r.metric("prefix_cache_hits_total") - b
                    for r, b in zip(replicas, before)]
        tokens = sum(a[1]["usage"]["prompt_tokens"] for a in answers) / len(answers)
        result = {"reads": reads, "computed": computed, "tokens": tokens}
        print(name, options[1], result)
        return result
    finally:
        router.stop()


def expect_one_reading(result):
    expect(result["reads"] == [1] * DOCUMENTS, result)
    expect(sum(result["computed"]) < 1.2 * DOCUMENTS * result["tokens"], result)
    return result


def check_a_killed_replica(venv, name, program, model, options):
    """Requests that a replica had not begun are answered by the other one."""
    replicas = [Replica(program, model), Replica(program, model)]
    router = Router(venv, name, replicas, *options)
    try:
        prompts = ["%d %s" % (i, document(i % 16, 120)) for i in range(48)]
        threads, answers = ask_all(router.address, prompts, 12, 16)
        end = time.monotonic() + PATIENCE
        while sum(a is not None for a in answers) < 12 and time.monotonic() < end:
            time.sleep(0.01)
        replicas[0].process.kill()
        for t in threads:
            t.join()
        lost = [a for a in answers if a[0] != 200]
        print(name, "killed under load: %d of %d requests lost" % (len(lost), len(prompts)))
        expect(not lost, (name, lost[:3]))
        return {"requests": len(prompts), "lost": len(lost)}
    finally:
        router.stop()
        for r in replicas:
            r.stop()


def check_drain(venv, name, program, model, options):
    """SIGTERM under load: everything is answered, and the replica ends with 0."""
    replicas = [Replica(program, model, "--drain-seconds", "8"), Replica(program, model)]
    router = Router(venv, name, replicas, *options)
    try:
        prompts = ["%d %s" % (i, document(i % 16, 120)) for i in range(96)]
        threads, answers = ask_all(router.address, prompts, 8, 24)
        end = time.monotonic() + PATIENCE
        while sum(a is not None for a in answers) < 8 and time.monotonic() < end:
            time.sleep(0.01)
        replicas[0].process.send_signal(signal.SIGTERM)
        for t in threads:
            t.join()
        lost = [a for a in answers if a[0] != 200]
        code = replicas[0].process.wait(PATIENCE)
        # Still there, by the other replica.
        after = request(router.address, "POST", "/v1/completions", body("after", 1))[0]
        print(name, "drained under load: %d of %d requests lost, exit code %d" % (len(lost), len(prompts), code))
        expect(not lost and code == 0 and after == 200, (name, lost[:3], code, after))
        return {"requests": len(prompts), "lost": len(lost)}
    finally:
        router.stop()
        for r in replicas:
            r.stop()


HEALTH = ["--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--health-success-threshold", "1"]
RETRIES = ["--retry-max-retries", "8", "--retry-initial-backoff-ms", "100", "--retry-max-backoff-ms", "1000",
           "--cb-failure-threshold", "1", "--cb-timeout-duration-secs", "5"]


def main():
    sys.stdout.reconfigure(line_buffering=True)
    program, model, venv = sys.argv[1:4]
    if "--inside" not in sys.argv:
        run_inside(venv, PINNED)
    os.chdir(venv)
    results = {}
    balance = ["--policy", "cache_aware", "--balance-abs-threshold", "2"]
    replicas = [Replica(program, model), Replica(program, model)]
    try:
        results["vllm-router cache_aware"] = expect_one_reading(
            readings(venv, "vllm-router", replicas, balance, "v"))
        events = ["--kv-event-block-size", "32", "--kv-event-model", "needle"]
        for r in replicas:
            events += ["--kv-event-source", "%s=%s" % (r.url, r.info["kv_events"]["endpoint"])]
            events += ["--kv-event-replay-source", "%s=%s" % (r.url, r.info["kv_events"]["replay"])]
        results["vllm-router kv_aware"] = expect_one_reading(
            readings(venv, "vllm-router", replicas, ["--policy", "kv_aware", *events], "k"))
        # It moves documents to the replica that is less busy: some are read twice.
        results["sglang-router cache_aware"] = readings(venv, "sglang-router", replicas, balance, "s")
        expect(max(results["sglang-router cache_aware"]["reads"]) <= 2, results)
    finally:
        for r in replicas:
            r.stop()
    spread = ["--policy", "round_robin", *HEALTH, *RETRIES]
    for name in ("vllm-router", "sglang-router"):
        results[name + " killed"] = check_a_killed_replica(venv, name, program, model, spread)
        results[name + " drained"] = check_drain(venv, name, program, model, spread)
    if "--json" in sys.argv:
        with open(sys.argv[sys.argv.index("--json") + 1], "w") as f:
            json.dump(results, f, indent=1)
    print("ok")


if __name__ == "__main__":
    main()
