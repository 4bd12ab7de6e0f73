"""A browser without a window, driven by WebDriver (https://www.w3.org/TR/webdriver2/) and the standard library."""
import http.client
import json
import os
import re
import shutil
import subprocess

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key that WebDriver gives elements under
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "Shift": "\ue008", "Down": "\ue015",
        "End": "\ue010", "Home": "\ue011", "Space": " "}


def find_browser():
    """(browser, driver), each a program, or None."""
    browser = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
    return browser, shutil.which("chromedriver")


class Browser:
    """One session. Errors of the browser are RuntimeError, with its words."""

    def __init__(self, browser, driver, scratch):
        self.driver = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                       text=True)
        self.session = None
        try:
            self.port = next(int(found.group(1)) for found in
                             (re.search(r"successfully on port (\d+)", line) for line in self.driver.stdout) if found)
            arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                         "--window-size=1200,900", "--user-data-dir=" + scratch]
            if os.geteuid() == 0:
                arguments.append("--no-sandbox")  # Chromium's refuses root
            self.session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": {
                "goog:chromeOptions": {"binary": browser, "args": arguments},
                "goog:loggingPrefs": {"browser": "ALL"}, "timeouts": {"script": 900000}}}})["sessionId"]
        except BaseException:
            self.close()
            raise

    def close(self):
        try:
            if self.session:
                self.of_session("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1000)
        connection.request(method, path, None if body is None else json.dumps(body),
                           {"Content-Type": "application/json"})
        value = json.load(connection.getresponse())["value"]
        connection.close()
        if isinstance(value, dict) and "error" in value:
            raise RuntimeError("%s: %s" % (value["error"], value["message"].splitlines()[0]))
        return value

    def of_session(self, method, path, body=None):
        return self.call(method, "/session/%s%s" % (self.session, path), body)

    def go(self, address):
        self.of_session("POST", "/url", {"url": address})

    def run(self, script, *arguments):
        """What the function body returns."""
        return self.of_session("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script, *arguments, seconds=90):
        """The first value of the expression that is true, asked for on every turn of the page's loop."""
        script = """const done = arguments[arguments.length - 1], end = performance.now() + %d, given = arguments;
            (function look() { const v = (function() { return %s; }).apply(null, given);
            v || performance.now() > end ? done(v) : setTimeout(look, 5); })();""" % (1000 * seconds, script)
        value = self.of_session("POST", "/execute/async", {"script": script, "args": list(arguments)})
        if not value:
            raise AssertionError("not within %g s: %s" % (seconds, script.split("return ")[1].split("; }")[0]))
        return value

    def wait_for(self, promise):
        """What the promise resolves to."""
        script = "const done = arguments[0]; (%s).then(done, e => done('error: ' + e));" % promise
        return self.of_session("POST", "/execute/async", {"script": script, "args": []})

    def press(self, *keys):
        """Keys one after the other, to whatever has the focus. "Shift+Tab" holds the first."""
        actions = []
        for key in keys:
            held = [KEYS.get(k, k) for k in key.split("+")] if len(key) > 1 else [key]
            actions += [{"type": "keyDown", "value": k} for k in held]
            actions += [{"type": "keyUp", "value": k} for k in reversed(held)]
        self.of_session("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def paste(self, text):
        """Puts text where the cursor is, at once, as a paste does."""
        self.command("Input.insertText", text=text)

    def click(self, selector):
        element = self.of_session("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]
        self.of_session("POST", "/element/%s/click" % element, {})

    def command(self, name, **parameters):
        return self.of_session("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def console(self):
        """Errors and warnings since the last call."""
        lines = self.of_session("POST", "/se/log", {"type": "browser"})
        return [line["message"] for line in lines if line["level"] in ("SEVERE", "WARNING")]
