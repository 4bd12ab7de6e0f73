#!/usr/bin/env python3
"""Takes docs/figures/page.png: the server's page with a question about demo/harbour.txt, 1280 x 900, light.

  tools/make_page_picture.py PROGRAM MODEL PICTURE [--method quest] [--budget 512]

Needs Chromium with its driver; pngquant, where there is one, reduces the picture to 128 colours.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "server"))
import page_looks  # noqa: E402
from served import Server  # noqa: E402
from web_driver import Browser, find_browser  # noqa: E402

QUESTIONS = ["What is the secret number of silver-harbour?"]


def reduce_colours(path):
    if shutil.which("pngquant"):
        subprocess.run(["pngquant", "--force", "--ext", ".png", "--nofs", "128", path], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("picture")
    parser.add_argument("--method", default="quest")
    parser.add_argument("--budget", type=int, default=512)
    args = parser.parse_args()
    with open(os.path.join(ROOT, "demo", "harbour.txt"), encoding="utf-8") as f:
        document = f.read()
    scratch = tempfile.mkdtemp(prefix="mneme-page-")
    with Server(args.program, args.model) as server:
        browser = Browser(*find_browser(), scratch)
        try:
            browser.command("Emulation.setDeviceMetricsOverride", width=1280, height=900,
                            deviceScaleFactor=1, mobile=False)
            browser.go(server.address)
            browser.wait("document.getElementById('method').options.length > 3")
            browser.run("""setDocument(arguments[0], 'harbour.txt');
                setEditing(false);
                document.getElementById('method').value = arguments[1];
                document.getElementById('budget').value = arguments[2];""", document, args.method, args.budget)
            for question in QUESTIONS:
                browser.run("ask(arguments[0])", question)
                browser.wait("document.getElementById('stop').hidden && reads.painted === 2")
            # To the passage with the answer, where it is among those most read.
            browser.run("""for (let i = 0; i < reads.passages.length; ++i) {
                  reads.showPassage(i);
                  const passage = [...document.querySelectorAll('#picture .passage')].map(s => s.textContent).join('');
                  if (passage.includes('silver-harbour')) return;
                }
                reads.showPassage(0);""")
            browser.wait_for("new Promise(r => setTimeout(() => r(true), 300))")
            page_looks.save(browser, args.picture)
        finally:
            browser.close()
            shutil.rmtree(scratch, ignore_errors=True)
    reduce_colours(args.picture)


if __name__ == "__main__":
    main()
