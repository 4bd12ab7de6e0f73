#!/usr/bin/env python3
"""The page at `/` in Chromium: what a person does with it, by keyboard where that is the question.

usage: page_test.py MNEME MODEL

Exit code 77: there is no Chromium with its driver here, nothing was tested.
"""
import http.client
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from web_driver import Browser, find_browser

SKIPPED = 77
DOCUMENT = "".join("The warden of house %d keeps the number %d in a drawer of oak.\n" % (i, 10007 * i % 90000 + 10000)
                   for i in range(120))
ANSWER = "document.querySelector('#turns .turn:last-child span')"
AT_REST = "!document.getElementById('send').disabled"


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


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


def focused(browser):
    return browser.run("return document.activeElement.id")


def value_of(browser, field):
    return browser.run("return document.getElementById(arguments[0]).value", field)


def watch_answer(browser, then=""):
    """Counts the lengths that the next answer has on its way, and runs `then` when its first text is there."""
    browser.run("""window.lengths = [];
        window.watch?.disconnect();
        window.watch = new MutationObserver(() => {
          const n = %s?.textContent.length || 0;
          if (n > 0 && n !== window.lengths.at(-1) && window.lengths.push(n) === 1) { %s }
        });
        window.watch.observe(document.getElementById('turns'), {subtree: true, childList: true, characterData: true});
        """ % (ANSWER, then))


def check_load(browser, server):
    browser.go(server.address)
    expect(browser.run("return document.title") == "Mneme", "title")
    browser.wait("document.getElementById('method').options.length > 3")
    expect("16,384" in browser.run("return document.getElementById('model').textContent"), "the model is not named")
    expect(value_of(browser, "method") == "full", value_of(browser, "method"))
    expect(browser.console() == [], "the console is not empty")


def check_keyboard(browser):
    """From the top of the page to an answer without a mouse."""
    order = []
    for _ in range(10):
        browser.press("Tab")
        order.append(focused(browser))
    expect(order == ["document", "turns", "question", "send", "reset", "method", "budget", "most", "temperature", "key"], order)
    rings = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
    expect(rings == "solid", "no mark on what has the focus: " + rings)
    browser.press(*["Shift+Tab"] * 9)
    browser.paste(DOCUMENT)
    expect(value_of(browser, "document") == DOCUMENT, "the document")
    browser.press(*["Tab"] * 5)
    browser.press(*"quest")
    expect(value_of(browser, "method") == "quest", value_of(browser, "method"))
    browser.press("Tab", *"512")
    expect(value_of(browser, "budget") == "512", value_of(browser, "budget"))
    browser.press(*["Shift+Tab"] * 4)
    expect(focused(browser) == "question", focused(browser))
    browser.paste("What number does the warden of house 7 keep?")
    watch_answer(browser)
    browser.press("Enter")
    browser.wait(AT_REST + " && window.lengths.length > 0")
    expect(browser.run("return document.getElementById('error').textContent") == "", "an error")
    expect(focused(browser) == "question", "the focus is lost")
    expect(browser.console() == [], "the console is not empty")


def check_picture(browser):
    """The pages of the prompt, some of them coloured, none beyond the document's."""
    colours = browser.run("return [...document.querySelectorAll('#picture span')].map(s => s.style.background)")
    expect(len(colours) > 60, len(colours))
    coloured = sum(c != "" for c in colours)
    expect(3 < coloured < len(colours), "%d of %d pages are coloured" % (coloured, len(colours)))
    expect(len(set(colours)) > 3, "all read equally often")
    text = browser.run("return document.getElementById('picture').textContent")
    expect("The warden of house 7 keeps" in text and "What number" in text, text[:200])
    title = browser.run("return document.querySelector('#picture span[style]').title")
    expect("tokens read in" in title, title)
    figures = dict(zip(*[browser.run("return [...document.querySelectorAll('#figures %s')].map(e => e.textContent)" % tag)
                         for tag in ("dt", "dd")]))
    expect(figures["method"] == "quest", figures)
    expect({"prompt", "answer", "selections", "corrected", "turnover", "read a step"} <= set(figures), figures)


def check_stop(browser, server):
    """Stop and Escape end an answer that has begun; what came stays, and the server has ended it too."""
    # The shipped model likes to be brief: its answers shall not end by themselves here.
    browser.run("""const fetch_ = window.fetch;
        window.fetch = (path, how) => fetch_(path, how?.body?.includes('"stream":true') ?
            {...how, body: how.body.replace('{', '{"ignore_eos":true,')} : how);""")
    for by_button in (True, False):
        aborts = server.metric("request_success_total", 'finished_reason="abort"')
        browser.run("document.getElementById('most').value = 4000; document.getElementById('temperature').value = 1;")
        browser.run("document.getElementById('question').focus()")
        browser.paste("Tell me everything, at length.")
        watch_answer(browser, "" if by_button else
                     "document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true}))")
        browser.press("Enter")
        if by_button:  # which stays where it is while the answer grows
            browser.wait("window.lengths.length > 2 || " + AT_REST)
            expect(browser.run("return window.lengths.length") > 2, "the answer came in one piece")
            browser.click("#stop")
        browser.wait(AT_REST)
        expect(browser.run("return document.getElementById('error').textContent") == "", "an error")
        expect(browser.run("return %s.textContent.length" % ANSWER) > 0, "what came is gone")
        expect(browser.run("return document.getElementById('stop').disabled"), "stop stays")
        end = time.monotonic() + 60
        while server.metric("num_requests_running") > 0 and time.monotonic() < end:
            time.sleep(0.01)
        expect(server.metric("request_success_total", 'finished_reason="abort"') > aborts, "the server went on")
        browser.click("#reset")
    expect(browser.run("return document.querySelectorAll('.turn').length") == 0, "reset leaves turns")


def check_schemes(browser):
    """Light and dark: what is read stands out from what is behind it (WCAG: 4.5 to 1)."""
    backs = set()
    for scheme in ("light", "dark"):
        browser.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        pairs = browser.run("""const out = [];
            const alpha = e => Number(getComputedStyle(e).backgroundColor.match(/[\\d.]+/g)[3] ?? 1);
            const most = [...document.querySelectorAll('#picture span')].sort((a, b) => alpha(b) - alpha(a))[0];
            most.id = 'most-read';
            for (const [words, behind] of [['body', 'body'], ['#model', 'body'], ['label', 'section'], ['#question', '#question'],
                                           ['#send', '#send'], ['#hint', 'section'], ['#error', 'section'], ['#most-read', '#most-read']])
              out.push([words, getComputedStyle(document.querySelector(words)).color,
                        getComputedStyle(document.querySelector(behind)).backgroundColor,
                        getComputedStyle(document.querySelector('section')).backgroundColor]);
            return out;""")
        for words, front, back, panel in pairs:
            low, high = sorted((luminance(channels(front)), luminance(over(channels(back), channels(panel)))))
            expect((high + 0.05) / (low + 0.05) >= 4.5, "%s, %s: %s on %s" % (scheme, words, front, back))
        backs.add(pairs[0][2])
    expect(len(backs) == 2, "light and dark are the same: %s" % backs)


def channels(colour):
    """Red, green, blue (0 to 255) and opacity of what a browser calls a colour."""
    numbers = [float(c) for c in re.findall(r"[\d.]+", colour)]
    return numbers + [1.0] * (4 - len(numbers))


def over(front, back):
    return [f * front[3] + b * (1 - front[3]) for f, b in zip(front[:3], back)]


def luminance(colour):
    shares = [c / 255 for c in colour[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def check_drop_and_errors(browser):
    browser.run("""const data = new DataTransfer();
        data.items.add(new File(['A file of words.'], 'words.txt', {type: 'text/plain'}));
        document.getElementById('document').dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}));""")
    browser.wait("document.getElementById('document').value === 'A file of words.'")
    browser.run("document.getElementById('most').value = 1000000; document.getElementById('question').focus()")
    browser.paste("Too long?")
    browser.press("Enter")
    browser.wait("document.getElementById('error').textContent.includes('the context has')")
    browser.wait(AT_REST)
    browser.console()  # Chromium writes a line for every answer that is no 200


def check_key(browser, server):
    """With a key, the page says what is missing, and goes on when it is given."""
    browser.go(server.address)
    browser.wait("document.getElementById('error').textContent.includes('API key')")
    browser.run("document.getElementById('key').focus()")
    browser.press(*"secret", "Tab")
    browser.wait("document.getElementById('method').options.length > 3")
    expect(browser.run("return document.getElementById('error').textContent") == "", "the error stays")


def main():
    program, model = sys.argv[1], sys.argv[2]
    found = find_browser()
    if None in found:
        print("SKIPPED: Chromium and its driver are not installed (Debian: tools/packages test)")
        sys.exit(SKIPPED)
    scratch = tempfile.mkdtemp(prefix="mneme-page-")
    browser = None
    try:
        with Server(program, model) as server:
            browser = Browser(*found, scratch)
            check_load(browser, server)
            check_keyboard(browser)
            check_picture(browser)
            check_schemes(browser)
            check_stop(browser, server)
            check_drop_and_errors(browser)
        with Server(program, model, MNEME_API_KEY="secret") as server:
            check_key(browser, server)
    finally:
        if browser:
            browser.close()
        shutil.rmtree(scratch, ignore_errors=True)
    print("the page in %s: passed" % os.path.basename(found[0]))


if __name__ == "__main__":
    main()
