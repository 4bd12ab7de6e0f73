"""A server of a test's own, on a port that was free."""
import http.client
import os
import re
import subprocess


class Server:
    def __init__(self, program, model, **env):
        command = [program, "serve", "-m", model, "--port", "0", "-c", "16384", "--quiet", "--no-pin"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ, **env))
        self.address = self.process.stdout.readline().split()[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def metric(self, name, label=""):
        connection = http.client.HTTPConnection(self.address.removeprefix("http://"))
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        return float(re.search(r"^mneme:%s{[^}]*%s} (\S+)$" % (name, label), text, re.MULTILINE).group(1))
