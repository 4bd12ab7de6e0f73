#!/usr/bin/env python3
"""The page at `/` in Chromium: what a person does with it, by keyboard where that is the question.

usage: page_test.py MNEME MODEL PICTURES

PICTURES is a folder for screenshots at three settings. Exit code 77: Chromium or its driver is not installed, nothing
was tested.
"""
import os
import re
import shutil
import sys
import tempfile
import time

import page_looks
from served import Server
from web_driver import Browser, find_browser

SKIPPED = 77
DOCUMENT = "".join("The warden of house %d keeps the number %d in a drawer of oak.\n" % (i, 10007 * i % 90000 + 10000)
                   for i in range(150))
QUESTION = "What number does the warden of house 7 keep?"
ANSWER = "document.querySelector('#turns .turn:last-child > .answer')"
AT_REST = "document.getElementById('stop').hidden"
REQUESTS = """window.requests = [];
    const fetch_ = window.fetch;
    window.fetch = (path, how) => {
      if (how?.body) window.requests.push({path, body: JSON.parse(how.body)});
      if (window.changed && path.endsWith('completions')) how = {...how, body: JSON.stringify(
          {...JSON.parse(how.body), ...window.changed})};
      return fetch_(path, how);
    };"""


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def value_of(browser, field):
    return browser.run("return document.getElementById(arguments[0]).value", field)


def set_value(browser, field, value):
    browser.run("""const e = document.getElementById(arguments[0]);
        e.value = arguments[1];
        for (const name of ['input', 'change']) e.dispatchEvent(new Event(name, {bubbles: true}));""", field, value)


def texts(browser, selector):
    return browser.run("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)


def send(browser, question):
    browser.run("document.getElementById('question').focus()")
    browser.paste(question)
    browser.press("Enter")


def ask(browser, question):
    send(browser, question)
    browser.wait(AT_REST)


def put_document(browser, text):
    browser.run("setEditing(true)")
    set_value(browser, "document", text)


def requests(browser, path):
    return [r["body"] for r in browser.run("return window.requests") if r["path"] == path]


def press_button(browser, selector, text):
    browser.run("[...document.querySelectorAll(arguments[0])].find(b => b.textContent === arguments[1]).click()",
                selector, text)


def check_load(browser, server):
    browser.go(server.address)
    browser.run(REQUESTS)
    browser.wait("document.getElementById('method').options.length > 3")
    expect("16,384" in browser.run("return document.getElementById('model').textContent"), "the model is not named")
    expect(value_of(browser, "method") == "full", value_of(browser, "method"))
    expect(texts(browser, "#method-note") != [""], "the method is not described")
    row = browser.run("return ['method', 'send'].map(id => document.getElementById(id).getBoundingClientRect().bottom)")
    expect(abs(row[0] - row[1]) < 8, "Send is in another row: %s" % row)
    expect(browser.console() == [], "the console is not empty")


def check_keyboard(browser):
    """From the top of the page to an answer without a mouse; the prompt's progress is shown on the way."""
    order, rings = [], set()
    browser.run("document.getElementById('open-settings').focus()")
    for _ in range(12):
        browser.press("Tab")
        order.append(browser.run("const e = document.activeElement; return e.id || e.ariaLabel || e.className"))
        rings.add(browser.run("return getComputedStyle(document.activeElement).outlineStyle"))
    expect(order == ["new", "open", "Rename New conversation", "Delete New conversation", "edit", "open-file",
                     "document", "turns", "question", "method", "budget", "send"], order)
    expect(rings == {"solid"}, "no mark on what has the focus: %s" % rings)
    browser.run("document.getElementById('document').focus()")
    browser.paste(DOCUMENT)
    browser.wait("document.getElementById('document-size').textContent !== ''")
    browser.run("document.getElementById('question').focus()")
    browser.press("Tab", *"quest")
    expect(value_of(browser, "method") == "quest", value_of(browser, "method"))
    browser.press("Tab", *"512")
    expect(value_of(browser, "budget") == "512", value_of(browser, "budget"))
    browser.run("""window.progress = [];
        new MutationObserver(() => window.progress.push(document.querySelector('#turns .progress')?.textContent))
            .observe(document.getElementById('turns'), {subtree: true, childList: true, characterData: true});""")
    browser.press(*["Shift+Tab"] * 2)
    browser.paste(QUESTION)
    browser.press("Enter")
    browser.wait(AT_REST + " && %s.textContent !== ''" % ANSWER)
    told = browser.run("return window.progress")
    expect(any(re.search(r"Reading the prompt: [1-9][\d,]* of [\d,]+ tokens", t or "") for t in told), set(told))
    expect(texts(browser, "#turns .progress") == [""], "the progress stays")
    expect(texts(browser, "#error") == [""], "an error")
    expect(browser.run("return document.activeElement.id") == "question", "the focus is lost")
    expect(browser.console() == [], "the console is not empty")


def check_reads(browser):
    """Text and strip show what was read, the text has scrolled to it, and the strip leads anywhere."""
    browser.wait("reads.painted === 2")
    expect("".join(texts(browser, "#picture span")) == DOCUMENT.rstrip(), "the text is not the document's")
    colours = browser.run("return [...document.querySelectorAll('#picture span')].map(s => s.style.background)")
    coloured = sum(c != "" for c in colours)
    expect(3 < coloured < len(colours), "%d of %d pages are coloured" % (coloured, len(colours)))
    expect(len(set(colours)) > 3, "all are read equally often")
    expect(browser.run("""const box = reads.picture.getBoundingClientRect();
        return [...document.querySelectorAll('#picture .passage')].some(s => {
          const b = s.getBoundingClientRect();
          return b.top >= box.top && b.top < box.bottom;
        })"""), "the passage most read is not in view")
    legend = texts(browser, "#legend-text")[0]
    expect(re.fullmatch(r"\d+(\.\d)?\s% of heads and steps", legend), legend)
    expect(texts(browser, "#legend .key") == ["always", "in view"], texts(browser, "#legend .key"))
    expect(browser.run("return document.querySelectorAll('#picture .always').length") > 0, "sinks are not marked")
    shades = browser.run("""const c = reads.strip;
        const d = c.getContext('2d').getImageData(0, c.height - 6, c.width, 1).data;
        return new Set(Array.from({length: c.width}, (_, x) => d.slice(4 * x, 4 * x + 4).join())).size;""")
    expect(shades > 5, "the strip has %d shades" % shades)
    browser.click("#next")
    expect(texts(browser, "#passage")[0].startswith("Passage 2 of "), texts(browser, "#passage"))
    browser.run("reads.strip.focus()")
    where = "return reads.picture.scrollTop / (reads.picture.scrollHeight - reads.picture.clientHeight)"
    for key, low, high in (("End", 0.9, 1.01), ("Home", 0, 0.05)):
        browser.press(key)
        share = browser.run(where)
        expect(low <= share <= high, "%s: at %g" % (key, share))
    browser.click("#strip")  # its middle
    share = browser.run(where)
    expect(0.3 < share < 0.7, "a click on the strip's middle leads to %g" % share)


def figures(browser):
    return dict(zip(texts(browser, "#figures dt"), texts(browser, "#figures dd")))


def kibibytes(text):
    number, unit = re.match(r"([\d.]+) (KiB|MiB)", text).groups()
    return float(number) * (1024 if unit == "MiB" else 1)


def check_passages(browser):
    """First comes what stands out: not what sinks and window read, nor the end, read more whatever is asked."""
    first = browser.run("""const always = new Uint8Array(60);
        const shares = Float64Array.from({length: 60}, (_, i) => i > 45 ? 0.9 : 0.2);
        always[0] = always[59] = shares[0] = shares[59] = 1;
        shares[20] = 0.7;
        return busiest(shares, always)[0];""")
    expect((first["from"], first["to"]) == (20, 21), first)


def check_hidden_reads(browser):
    """Where the panel is hidden when it is painted (a phone), it shows the passage when it is opened."""
    browser.run("""document.getElementById('reads').hidden = true;
        reads.showPassage(0);
        document.getElementById('reads').hidden = false;""")
    browser.wait("""reads.pending === undefined && [...document.querySelectorAll('#picture .passage')].some(s => {
          const b = s.getBoundingClientRect(), box = reads.picture.getBoundingClientRect();
          return b.top >= box.top && b.top < box.bottom;
        })""")


def check_find(browser):
    """The field finds words of the document, from place to place, and says where there are none."""
    page = "return reads.spans.findIndex(s => s.classList.contains('found'))"
    browser.run("document.getElementById('find').focus()")
    browser.paste("WARDEN of house 1")
    first = browser.run(page)
    browser.press("Enter")
    second = browser.run(page)
    expect(0 <= first < second, (first, second))
    set_value(browser, "find", "nowhere at all")
    expect(texts(browser, "#found") == ["not in the document"] and browser.run(page) == -1, texts(browser, "#found"))
    set_value(browser, "find", "")


def check_continue(browser):
    """An answer that was cut goes on where it ended."""
    browser.click("#new")
    set_value(browser, "max_tokens", "4")
    browser.run("window.changed = {ignore_eos: true}")
    ask(browser, "Tell me everything.")
    before = browser.run("return views.at(-1).turn.answer")
    press_button(browser, ".actions button", "Continue")
    browser.wait(AT_REST + " && views.at(-1).turn.answer.length > arguments[0].length", before)
    expect(browser.run("return views.at(-1).turn.answer").startswith(before), "the answer began again")
    body = requests(browser, "/v1/chat/completions")[-1]
    expect(body["continue_final_message"] and body["messages"][-1] == {"role": "assistant", "content": before}, body)
    browser.run("window.changed = {}")
    set_value(browser, "max_tokens", "12")


def check_figures(browser):
    """The sparse step reads less than the full one, which says what it reads; the text is tokenized once."""
    sparse = figures(browser)
    expect(sparse["Method"] == "quest, budget 512", sparse)
    expect({"Prompt", "Answer", "Selections", "Turnover", "Read per step", "Index per step"} <= set(sparse), sparse)
    set_value(browser, "method", "full")
    ask(browser, QUESTION)
    full = figures(browser)
    expect(kibibytes(full["Read per step"]) > 2 * kibibytes(sparse["Read per step"]) > 0, (full, sparse))
    expect("every token" in texts(browser, "#hint")[0], texts(browser, "#hint"))
    expect(len(requests(browser, "/tokenize")) == 1, "%d calls of /tokenize" % len(requests(browser, "/tokenize")))
    browser.run("document.querySelectorAll('#turns .turn')[0].querySelector('[aria-pressed]').click()")
    browser.wait("document.querySelector('#figures').textContent.includes('quest')")
    expect(figures(browser) == sparse, figures(browser))


def check_unicode(browser):
    text = "Dæmonen 港口的老人 — “naïve” 👩‍🚀🏴 Ἑλλάς ζώ.\n" * 40
    browser.click("#new")
    put_document(browser, text)
    set_value(browser, "method", "quest")
    ask(browser, "Who?")
    browser.wait("document.querySelector('#picture span')")
    shown = "".join(texts(browser, "#picture span"))
    expect(shown == text.rstrip(), "the text is damaged: " + shown[:200])


def check_new_during_answer(browser, server):
    """A conversation begun during an answer knows nothing of it; the answer stays with its own."""
    browser.click("#new")
    browser.click("#remove")
    browser.run("window.changed = {ignore_eos: true}; document.getElementById('max_tokens').value = 3000")
    send(browser, "Tell me everything.")
    browser.wait(ANSWER + "?.textContent.length > 3")
    browser.click("#new")
    expect(texts(browser, ".turn") == [], "the old turn is shown")
    browser.run("window.changed = {}; document.getElementById('max_tokens').value = 20")
    ask(browser, "Something else?")
    messages = requests(browser, "/v1/chat/completions")[-1]["messages"]
    expect([m["content"] for m in messages] == ["Something else?"], messages)
    expect("Tell me everything." in texts(browser, "#list .running .open"), texts(browser, "#list .open"))
    press_button(browser, "#list .open", "Tell me everything.")
    expect(texts(browser, ".question") == ["Tell me everything."], texts(browser, ".question"))
    expect(len(texts(browser, ".answer")[0]) > 3, "the answer has gone")
    browser.click("#stop")
    browser.wait(AT_REST)


def check_stop(browser, server):
    """Stop and Escape end an answer that started; its text stays, and the server has ended it too."""
    browser.run("window.changed = {ignore_eos: true}; document.getElementById('max_tokens').value = 4000")
    set_value(browser, "temperature", "1")
    for by_button in (True, False):
        aborts = server.metric("request_success_total", 'finished_reason="abort"')
        browser.click("#new")
        send(browser, "Tell me everything, at length.")
        browser.wait(ANSWER + "?.textContent.length > 3")
        browser.click("#stop") if by_button else browser.press("Escape")
        browser.wait(AT_REST)
        expect(texts(browser, ".problem") == ["Stopped."], texts(browser, ".problem"))
        expect(len(texts(browser, ".answer")[0]) > 3, "the text has gone")
        end = time.monotonic() + 600
        while server.metric("num_requests_running") > 0 and time.monotonic() < end:
            time.sleep(0.01)
        expect(server.metric("request_success_total", 'finished_reason="abort"') > aborts, "the server went on")
    browser.run("window.changed = {}")
    set_value(browser, "temperature", "0")


def check_error_and_retry(browser):
    """An error shows beside its turn; nothing is lost, and Retry asks again."""
    browser.click("#new")
    set_value(browser, "max_tokens", "1000000")
    ask(browser, "Too long?")
    expect("the context has" in texts(browser, ".problem.wrong")[0], texts(browser, ".problem"))
    expect(texts(browser, ".question") == ["Too long?"], "the question has gone")
    set_value(browser, "max_tokens", "12")
    press_button(browser, ".actions button", "Retry")
    browser.wait(AT_REST + " && %s.textContent !== ''" % ANSWER)
    expect(texts(browser, ".problem.wrong") == [] and len(texts(browser, ".turn")) == 1, texts(browser, ".problem"))
    # An answer that fails to be made again leaves the one before.
    before = texts(browser, ".answer")
    browser.run("window.changed = {max_tokens: 1000000}")
    press_button(browser, ".actions button", "Regenerate")
    browser.wait(AT_REST + " && document.querySelector('.problem.wrong')")
    expect(texts(browser, ".answer") == before and before != [""], "the answer before has gone")
    browser.run("window.changed = {}")
    press_button(browser, ".actions button", "Retry")
    browser.wait(AT_REST + " && !document.querySelector('.problem.wrong')")
    expect(len(texts(browser, ".turn")) == 1, "a turn more")
    browser.console()  # Chromium writes a line for every answer that is no 200


def check_copy(browser, server):
    browser.command("Browser.grantPermissions", origin=server.address,
                    permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    press_button(browser, ".actions button", "Copy")
    browser.wait("[...document.querySelectorAll('.actions button')].some(b => b.textContent === 'Copied')")
    copied = browser.wait_for("navigator.clipboard.readText()")
    expect(copied == browser.run("return views.at(-1).turn.answer"), copied)


SCRIPT = """window.sent = [];
    window.script = arguments[0];
    const before = window.fetch;
    window.fetch = (path, how) => {
      if (!path.endsWith('completions')) return before(path, how);
      window.sent.push(JSON.parse(how.body));
      const chunks = window.script.shift().map(c => 'data: ' + JSON.stringify({choices: [c]}) + '\\n\\n').join('');
      if (window.script.length === 0) window.fetch = before;
      return Promise.resolve(new Response(chunks + 'data: [DONE]\\n\\n'));
    };"""


def check_calls(browser):
    """Thought, calls and results are folded; results that a person types go back, and nothing is asked before."""
    def call(**function):
        return {"delta": {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]}}

    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    browser.run("newConversation(); window.confirm = () => { throw new Error('it asks'); };")
    set_value(browser, "tools", "[{]")
    ask(browser, "How cold is it?")
    expect("Settings, tools: no JSON" in texts(browser, ".turn .problem")[0], texts(browser, ".turn .problem"))
    set_value(browser, "tools", repr([tool]).replace("'", '"'))
    browser.run(SCRIPT, [
        [{"delta": {"reasoning_content": "I look it up."}}, call(name="weather", arguments=""),
         call(arguments='{"ci'), call(arguments='ty":"Oslo"}'), {"delta": {}, "finish_reason": "tool_calls"}],
        [{"delta": {"content": "It is cold."}}, {"delta": {}, "finish_reason": "stop"}]])
    press_button(browser, ".actions button", "Retry")
    browser.wait(AT_REST + " && document.querySelector('.turn .call')")
    expect(texts(browser, ".turn .call summary") == ["Call: weather"], texts(browser, ".turn .call summary"))
    expect(texts(browser, ".turn .call pre") == ['{\n "city": "Oslo"\n}'], texts(browser, ".turn .call pre"))
    expect(browser.run("return document.querySelectorAll('.turn details[open]').length") == 0, "not folded")
    browser.run("""const e = document.querySelector('.turn .call textarea');
        e.value = '-3 C';
        e.dispatchEvent(new Event('input'));""")
    press_button(browser, ".actions button", "Send results")
    browser.wait(AT_REST + " && %s.textContent === 'It is cold.'" % ANSWER)
    first, second = browser.run("return window.sent")
    expect(first["tools"] == [tool], first)
    made = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
    expect(second["messages"][-2:] == [{"role": "assistant", "content": None, "tool_calls": [made]},
                                       {"role": "tool", "tool_call_id": "c1", "content": "-3 C"}], second["messages"])
    expect(texts(browser, ".turn .call pre") == ['{\n "city": "Oslo"\n}', "-3 C"], texts(browser, ".turn .call pre"))
    expect(browser.run("return document.querySelectorAll('.turn details[open]').length") == 0, "not folded")
    expect(texts(browser, ".turn .thought div")[0] == "I look it up.", texts(browser, ".turn .thought div"))
    set_value(browser, "tools", "")


def check_settings(browser):
    """System text and sampling reach the server."""
    browser.click("#new")
    browser.click("#open-settings")
    expect(browser.run("return document.activeElement.id") == "system", "the dialog does not take the focus")
    browser.paste("Answer in verse.")
    for field, value in (("temperature", "0.7"), ("top_p", "0.9"), ("seed", "42"), ("max_tokens", "9")):
        set_value(browser, field, value)
    browser.press("Escape")
    expect(not browser.run("return document.getElementById('settings').open"), "Escape leaves the dialog")
    ask(browser, "Why?")
    body = requests(browser, "/v1/chat/completions")[-1]
    expect(body["messages"][0] == {"role": "system", "content": "Answer in verse."}, body["messages"])
    told = {k: body[k] for k in ("temperature", "top_p", "seed", "max_tokens")}
    expect(told == {"temperature": 0.7, "top_p": 0.9, "seed": 42, "max_tokens": 9}, told)
    expect(body["kv"] == {"method": "quest", "budget": 512}, body["kv"])
    first = texts(browser, ".answer")
    press_button(browser, ".actions button", "Regenerate")
    browser.wait(AT_REST)
    expect(texts(browser, ".answer") == first and len(texts(browser, ".turn")) == 1, "the seed gives another answer")
    set_value(browser, "seed", "")
    set_value(browser, "temperature", "0")


def check_files(browser):
    """A file by button and by drop; what is no text is refused and leaves the document."""
    give = """const data = new DataTransfer();
        const content = arguments[1] ? new Uint8Array(arguments[1]) : 'A file of words: é.';
        data.items.add(new File([content], arguments[0]));"""
    browser.run(give + """const input = document.getElementById('file');
        input.files = data.files;
        input.dispatchEvent(new Event('change'));""", "button.txt")
    browser.wait("document.getElementById('document-name').textContent === 'button.txt'")
    drop = give + """document.getElementById('chat').dispatchEvent(
        new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}));"""
    browser.run(drop, "dropped.txt")
    browser.wait("document.getElementById('document-name').textContent === 'dropped.txt'")
    browser.run(drop, "picture.png", [137, 80, 78, 71, 0, 255, 254])
    browser.wait("document.getElementById('error').textContent.includes('picture.png is not text')")
    expect(texts(browser, "#document-name") == ["dropped.txt"], "the document has gone")
    ask(browser, "And this?")
    content = requests(browser, "/v1/chat/completions")[-1]["messages"][1]["content"]
    expect(content.startswith("A file of words: é."), content)


def check_reload(browser):
    """A reload keeps conversations, document, draft and settings; the list opens, renames and deletes."""
    kept = texts(browser, ".question"), texts(browser, ".answer"), texts(browser, "#list .open")
    browser.run("document.getElementById('question').focus()")
    browser.paste("a draft, half wri")
    browser.run("location.reload()")
    browser.wait("document.readyState === 'complete' && document.getElementById('method').options.length > 3")
    again = texts(browser, ".question"), texts(browser, ".answer"), texts(browser, "#list .open")
    expect(again == kept, "turns are lost")
    expect(value_of(browser, "question") == "a draft, half wri", value_of(browser, "question"))
    expect(texts(browser, "#document-name") == ["dropped.txt"], texts(browser, "#document-name"))
    expect(browser.wait_for("textOf(current)") == "A file of words: é.", "the document is lost")
    expect((value_of(browser, "method"), value_of(browser, "budget")) == ("quest", "512"), "settings are lost")
    set_value(browser, "question", "")
    n = len(texts(browser, "#list .open"))
    browser.run("document.querySelector('#list li:has([aria-current]) [aria-label^=Rename]').click()")
    browser.command("Input.insertText", text="Verses")
    browser.press("Enter")
    expect("Verses" in texts(browser, "#list .open"), texts(browser, "#list .open"))
    browser.run("window.confirm = () => true;"
                "document.querySelector('#list li:has([aria-current]) [aria-label^=Delete]').click()")
    expect(len(texts(browser, "#list .open")) == n - 1 and "Verses" not in texts(browser, "#list .open"), "it stays")


def check_key(browser, server):
    """With a key, the page says what is missing, and goes on when it is given."""
    browser.go(server.address)
    browser.wait("document.getElementById('error').textContent.includes('API key')")
    browser.click("#open-settings")
    browser.run("document.getElementById('key').focus()")
    browser.press(*"secret", "Tab")
    browser.wait("document.getElementById('method').options.length > 3")
    expect(texts(browser, "#error") == [""], "the error stays")


def main():
    program, model, pictures = sys.argv[1:4]
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
            check_reads(browser)
            check_passages(browser)
            check_hidden_reads(browser)
            check_find(browser)
            check_figures(browser)
            page_looks.check(browser, pictures)
            check_unicode(browser)
            check_new_during_answer(browser, server)
            check_stop(browser, server)
            check_error_and_retry(browser)
            check_copy(browser, server)
            check_continue(browser)
            check_calls(browser)
            check_settings(browser)
            check_files(browser)
            check_reload(browser)
        with Server(program, model, MNEME_API_KEY="secret") as server:
            check_key(browser, server)
    finally:
        if browser:
            browser.close()
        shutil.rmtree(scratch, ignore_errors=True)
    print("the page in %s: passed" % os.path.basename(found[0]))


if __name__ == "__main__":
    main()
