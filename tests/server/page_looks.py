"""How the page looks: screenshots, what is outside of the window, contrast, and Markdown that lets no markup in."""
import base64
import os
import re

SETTINGS = {"wide": (1280, 900, "light", False), "phone": (390, 844, "light", True), "dark": (1280, 900, "dark", False)}
# Elements that are drawn and lie outside of the window, or of the element that scrolls them.
OUTSIDE = """const out = [];
    const scrolls = e => /auto|scroll/.test(getComputedStyle(e).overflowX + getComputedStyle(e).overflowY);
    for (const e of document.querySelectorAll('body *')) {
      const b = e.getBoundingClientRect();
      const drawn = b.width > 0 && b.height > 0 && e.checkVisibility({visibilityProperty: true});
      if (!drawn || e.closest('.hidden')) continue;
      let box = e.parentElement;
      while (box !== document.body && !scrolls(box)) box = box.parentElement;
      const inside = box === document.body ? {left: 0, right: innerWidth, top: 0, bottom: innerHeight} :
                                             box.getBoundingClientRect();
      const sideways = b.left < inside.left - 1 || b.right > inside.right + 1;
      const below = box === document.body && (b.top < -1 || b.bottom > inside.bottom + 1);
      const wide = getComputedStyle(box).overflowX === 'auto' && box.matches('pre, .wide');
      if (sideways && !wide || below)
        out.push(`${e.tagName} ${e.id} ${e.className}: ${JSON.stringify(b)} in ${box.id}`);
    }
    if (document.documentElement.scrollWidth > innerWidth) out.push('the page scrolls sideways');
    return out;"""
HOSTILE = r"""# A <b>heading</b>

Text with **bold *and italic***, `code <i>`, ~~gone~~ and [a link](https://example.org/a?b=1).
Bad: [x](javascript:alert(1)), [y](data:text/html,<script>),
<img src=x onerror="window.attacked = 1">, a_b_c, 2 * 3 * 4.

1. first
2. second
   - inner one
   - inner two

```js
<script>window.attacked = 1</script>
```

| a | b |
|---|---|
| 1 | **2** |

> quoted https://example.org/x.

<script>window.attacked = 1</script>"""


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def check(browser, pictures):
    os.makedirs(pictures, exist_ok=True)
    check_markdown(browser)
    browser.run("views[0].turn.answer += '\\n\\n| house | number |\\n|---|---|\\n| 7 | **80,049** |\\n\\n`oak` and a '"
                " + 'very-long-word-'.repeat(20); views[0].update(true)")
    backs = set()
    for name, (width, height, scheme, phone) in SETTINGS.items():
        browser.command("Emulation.setDeviceMetricsOverride", width=width, height=height,
                        deviceScaleFactor=2 if phone else 1, mobile=phone)
        browser.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        for view in ("chat", "reads"):
            browser.run("showView(arguments[0])", view)
            browser.wait_for("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(true))))")
            outside = browser.run(OUTSIDE)
            expect(outside == [], "%s, %s: %s" % (name, view, "\n".join(outside)))
            if phone or view == "chat":
                save(browser, os.path.join(pictures, "page-%s%s.png" % (name, "-reads" * (phone and view == "reads"))))
        if phone:
            check_drawer(browser)
        backs.add(check_contrast(browser, name, phone))
    expect(len(backs) == 2, "light and dark are the same: %s" % backs)
    browser.command("Emulation.clearDeviceMetricsOverride")
    browser.command("Emulation.setEmulatedMedia", features=[])
    browser.run("showView('chat')")


def save(browser, path):
    with open(path, "wb") as f:
        f.write(base64.b64decode(browser.command("Page.captureScreenshot", format="png")["data"]))


def check_drawer(browser):
    browser.run("showView('chat')")
    browser.click("#menu")
    expect(browser.run("return document.getElementById('new').checkVisibility()"), "the drawer stays closed")
    expect(browser.run(OUTSIDE) == [], "the drawer: %s" % browser.run(OUTSIDE))
    browser.press("Escape")
    expect(not browser.run("return document.getElementById('new').checkVisibility()"), "Escape leaves the drawer open")


def check_markdown(browser):
    """Structure where it is Markdown's, text where it is HTML."""
    browser.run("const box = document.createElement('div'); box.id = 'rendered'; document.body.append(box); "
                "box.append(...renderMarkdown(arguments[0]))", HOSTILE)
    found = browser.run("""const box = document.getElementById('rendered'), n = s => box.querySelectorAll(s).length;
        return {h3: n('h3'), strong: n('p strong'), em: n('strong em'), code: n('p code'), del: n('del'),
                ol: n('ol > li'), ul: n('ol ul > li'), pre: n('pre'), td: n('td'), bold: n('td strong'),
                quote: n('blockquote a'),
                links: [...box.querySelectorAll('a')].map(a => a.getAttribute('href')), html: n('script, img, b, i'),
                attacked: window.attacked ?? null, text: box.textContent};""")
    browser.run("document.getElementById('rendered').remove()")
    text = found.pop("text")
    expected = {"h3": 1, "strong": 1, "em": 1, "code": 1, "del": 1, "ol": 2, "ul": 2, "pre": 1, "td": 2, "bold": 1,
                "quote": 1, "links": ["https://example.org/a?b=1", "https://example.org/x"], "html": 0,
                "attacked": None}
    expect(found == expected, found)
    for part in ('<img src=x onerror="window.attacked = 1">', "A <b>heading</b>", "a_b_c, 2 * 3 * 4", "code <i>"):
        expect(part in text, (part, text))


def check_contrast(browser, name, phone):
    """WCAG's 4.5 to 1 for all text, that over the pages most read included. The colour behind the page."""
    browser.run("showView('reads')")
    pairs = browser.run("""const out = [];
        const solid = (e, colours) => {
          for (; e; e = e.parentElement) {
            const c = getComputedStyle(e).backgroundColor;
            colours.push(c);
            if (!c.includes('/') && !c.startsWith('rgba')) return colours;
          }
          return colours;
        };
        const alpha = e => Number(getComputedStyle(e).backgroundColor.match(/[\\d.]+/g)[3] ?? 1);
        const spans = [...document.querySelectorAll('#picture span:not(.always)')];
        const most = spans.sort((a, b) => alpha(b) - alpha(a))[0];
        const words = 'body :is(span, p, label, button, dt, dd, b, h1, h2, .question, code, #question)';
        for (const e of [most, ...document.querySelectorAll(words)])
          if (e.checkVisibility() && (e.textContent || e.value))
            out.push([e.id || e.className || e.tagName, getComputedStyle(e).color, solid(e, [])]);
        return out;""")
    expect(len(pairs) > 30, len(pairs))
    for what, front, behind in pairs:
        back = [255, 255, 255]
        for layer in reversed(behind):
            back = over(channels(layer), back)
        low, high = sorted((luminance(channels(front)), luminance(back)))
        expect((high + 0.05) / (low + 0.05) >= 4.5, "%s, %s: %s on %s" % (name, what, front, behind))
    return browser.run("return getComputedStyle(document.body).backgroundColor")


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
