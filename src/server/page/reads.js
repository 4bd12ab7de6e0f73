// What an answer read of its document: a strip over the whole of it, the text itself, and the way between both. The
// server counts reads by pages of 32 tokens of the prompt.

const BUSIEST = 24;  // pages that the way from passage to passage leads through
const AROUND = 12;   // pages on each side that a page is compared with

function byId(id) {
  return document.getElementById(id);
}

function count(n) {
  return Math.round(n).toLocaleString("en");
}

function largest(shares) {
  return shares.reduce((a, b) => Math.max(a, b), 0);
}

function percent(share) {
  return (100 * share).toFixed(share < 0.1 ? 1 : 0) + "\u00a0%";
}

// Tokens with their pieces to the document's part of the prompt: {first, texts, end}, where texts[i] is the text of
// page first + i, and `end` the token it ends before. A piece that is no whole characters is an array of bytes; a
// character lies where its last byte does.
function layOut(tokens, text, pageTokens = 32) {
  const decoder = new TextDecoder(), encoder = new TextEncoder(), pages = [];
  for (let at = 0; at < tokens.length; at += pageTokens) {
    const parts = tokens.slice(at, at + pageTokens).map(t =>
        decoder.decode(Array.isArray(t.piece) ? Uint8Array.from(t.piece) : encoder.encode(t.piece), {stream: true}));
    pages.push(parts.join(""));
  }
  const begin = pages.join("").indexOf(text);
  // A tokenizer that changes its text: all of the prompt.
  if (begin < 0) return {first: 0, texts: pages, end: tokens.length};
  const end = begin + text.length, texts = [];
  let first = 0;
  for (let i = 0, at = 0; i < pages.length; at += pages[i].length, ++i) {
    const part = pages[i].slice(Math.max(begin - at, 0), Math.max(end - at, 0));
    if (part === "" && texts.length === 0) first = i + 1;
    else if (part !== "") texts.push(part);
  }
  return {first, texts, end: Math.min(pageTokens * (first + texts.length), tokens.length)};
}

// Shares of (step, layer, KV head) that read each page of the document, and which pages every step reads.
function readShares(turn, layout) {
  const reads = turn.reads, n = layout.texts.length, page = reads?.page_tokens ?? 32;
  const shares = new Float64Array(n), always = new Uint8Array(n);
  const prompt = turn.usage?.prompt_tokens ?? turn.progress?.total ?? Infinity;
  for (let i = 0; i < n; ++i) {
    const at = layout.first + i;
    if (reads?.max_reads > 0) shares[i] = (reads.reads[at] ?? 0) / reads.max_reads;
    always[i] = turn.method === "full" || reads && (at * page < reads.sink || (at + 1) * page > prompt - reads.recent);
  }
  return {shares, always};
}

// By how much each page is read more than the median of those around it. Sinks and window say nothing about a question,
// and heads read the end of a document more whatever is asked: neither stands out.
function prominence(shares, always) {
  return shares.map((share, i) => {
    if (always[i]) return 0;
    const around = [];
    for (let j = Math.max(i - AROUND, 0); j <= Math.min(i + AROUND, shares.length - 1); ++j)
      if (!always[j]) around.push(shares[j]);
    around.sort((a, b) => a - b);
    return Math.max(share - around[around.length >> 1], 0);
  });
}

// Runs of neighbours among the pages that stand out, those that do most first: {from, to, share, lift}.
function busiest(shares, always) {
  const lift = prominence(shares, always);
  const order = [...lift.keys()].filter(i => lift[i] > 0).sort((a, b) => lift[b] - lift[a]);
  const picked = order.slice(0, BUSIEST).sort((a, b) => a - b), runs = [];
  for (const i of picked) {
    const last = runs.at(-1);
    if (last && last.to === i) {
      last.to = i + 1;
      last.share = Math.max(last.share, shares[i]);
      last.lift += lift[i];
    } else {
      runs.push({from: i, to: i + 1, share: shares[i], lift: lift[i]});
    }
  }
  return runs.sort((a, b) => b.lift - a.lift);
}

function hintFor(turn) {
  if (!turn) return "Ask something: the parts of the document that the answer reads are coloured here.";
  if (!turn.document) return "There is no document in this conversation.";
  if (turn.document !== current.document?.key) return "The document has been changed since this answer.";
  return "";
}

function remarkOn(turn) {
  if (turn.method === "full") return "Full attention reads every token at every step.";
  if (!turn.reads) return turn.retrieval ? "No step was counted." : "";
  if (turn.reads.max_reads === 0)
    return "No step selected: the prompt fits into the budget, or the method decides once what it keeps.";
  return "";
}

class Reads {
  spans = [];
  shares = new Float64Array(0);
  always = new Uint8Array(0);
  passages = [];
  at = 0;

  constructor() {
    this.picture = byId("picture");
    this.strip = byId("strip");
    this.redraw = this.redraw.bind(this);
    this.picture.addEventListener("scroll", () => this.plan());
    new ResizeObserver(() => this.plan()).observe(this.strip);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.plan());
    const drag = e => e.buttons & 1 && this.showPage(this.pageAt(e.offsetX));
    this.strip.addEventListener("pointerdown", e => { this.strip.setPointerCapture(e.pointerId); drag(e); });
    this.strip.addEventListener("pointermove", drag);
    this.strip.addEventListener("keydown", e => this.onKey(e));
    byId("previous").addEventListener("click", () => this.showPassage(this.at - 1));
    byId("next").addEventListener("click", () => this.showPassage(this.at + 1));
    byId("find").addEventListener("input", () => this.find(0));
    byId("find").addEventListener("keydown", e => {
      if (e.key !== "Enter") return;
      e.preventDefault();
      this.find(e.shiftKey ? -1 : 1);
    });
  }

  clear(hint) {
    this.spans = [];
    this.passages = [];
    this.layout = null;
    this.pending = undefined;
    this.picture.replaceChildren();
    byId("map").hidden = this.picture.hidden = true;
    byId("hint").textContent = hint;
  }

  // Shows the text; what was read of it follows with paint().
  setLayout(layout) {
    if (layout === this.layout) return;
    this.clear("");
    this.layout = layout;
    this.spans = layout.texts.map(text => {
      const span = document.createElement("span");
      span.textContent = text;
      return span;
    });
    this.picture.append(...this.spans);
    this.picture.scrollTop = 0;
    this.text = layout.texts.join("").toLowerCase();
    this.found = -1;
    byId("found").textContent = "";
    byId("map").hidden = this.picture.hidden = this.spans.length === 0;
    byId("scale-end").textContent = count(layout.end) + " tokens";
  }

  paint(turn, scroll) {
    Object.assign(this, readShares(turn, this.layout));
    const most = largest(this.shares);
    this.spans.forEach((span, i) => {
      const share = this.shares[i], depth = share > 0 ? 0.08 + 0.62 * Math.sqrt(share / most) : 0;
      span.style.background = depth > 0 ? `rgb(var(--read) / ${depth.toFixed(3)})` : "";
      span.classList.toggle("always", this.always[i] === 1);
      span.title = this.always[i] ? "read at every step" : "read by " + percent(share) + " of heads and steps";
    });
    byId("legend-text").textContent = most > 0 ? percent(most) + " of heads and steps" : "none";
    this.passages = busiest(this.shares, this.always);
    byId("passages").hidden = this.passages.length === 0;
    if (scroll && this.passages.length > 0) this.showPassage(0);
    this.plan();
  }

  showPassage(at) {
    const n = this.passages.length;
    if (n === 0) return;
    this.at = (at + n) % n;
    const {from, to, share} = this.passages[this.at], first = 32 * (this.layout.first + from);
    byId("passage").textContent = `Passage ${this.at + 1} of ${n}: tokens ${count(first)} to ` +
        `${count(first + 32 * (to - from) - 1)}, read by ${percent(share)}`;
    this.spans.forEach((span, i) => span.classList.toggle("passage", i >= from && i < to));
    this.showPage(from);
  }

  // The panel may be hidden, where nothing scrolls: then when it is shown.
  showPage(i) {
    this.pending = this.picture.clientHeight === 0 ? i : undefined;
    if (this.pending !== undefined) return this.plan();
    const span = this.spans[Math.min(Math.max(i, 0), this.spans.length - 1)];
    if (span) this.picture.scrollTop = span.offsetTop - this.picture.clientHeight / 3;
  }

  // Shows where the document has the words in the field: the first place after the last one (1), before it (-1), or
  // from it on (0).
  find(step) {
    const words = byId("find").value.toLowerCase();
    this.spans.forEach(span => span.classList.remove("found"));
    byId("found").textContent = "";
    if (!words || !this.layout) return;
    const from = Math.max(this.found + step, 0), backwards = step < 0;
    let at = backwards ? (this.found > 0 ? this.text.lastIndexOf(words, this.found - 1) : -1)
                       : this.text.indexOf(words, from);
    if (at < 0) at = backwards ? this.text.lastIndexOf(words) : this.text.indexOf(words);
    this.found = at;
    byId("found").textContent = at < 0 ? "not in the document" : "";
    if (at < 0) return;
    let page = 0;
    for (let end = this.layout.texts[0].length; end <= at; end += this.layout.texts[++page].length);
    this.spans[page].classList.add("found");
    this.showPage(page);
  }

  pageAt(x) {
    return Math.floor(x / this.strip.clientWidth * this.spans.length);
  }

  onKey(e) {
    const steps = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1, PageUp: -8, PageDown: 8};
    const n = this.spans.length;
    if (e.key === "Home") this.showPage(0);
    else if (e.key === "End") this.showPage(n - 1);
    else if (e.key in steps) this.picture.scrollTop += steps[e.key] * 0.9 * this.picture.clientHeight;
    else return;
    e.preventDefault();
  }

  // The pages at the top and the bottom of what is visible.
  visible() {
    const find = y => {
      let low = 0, high = this.spans.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (this.spans[middle].offsetTop <= y) low = middle;
        else high = middle - 1;
      }
      return low;
    };
    return [find(this.picture.scrollTop + 8), find(this.picture.scrollTop + this.picture.clientHeight - 8)];
  }

  plan() {
    this.planned ??= requestAnimationFrame(this.redraw);
  }

  redraw() {
    this.planned = undefined;
    const n = this.spans.length, width = this.strip.clientWidth, height = this.strip.clientHeight;
    if (n === 0 || width === 0) return;
    if (this.pending !== undefined) this.showPage(this.pending);
    const scale = devicePixelRatio, g = this.strip.getContext("2d");
    this.strip.width = width * scale;
    this.strip.height = height * scale;
    g.scale(scale, scale);
    const style = getComputedStyle(document.documentElement), colour = name => style.getPropertyValue(name).trim();
    const most = largest(this.shares), columns = Math.min(Math.floor(width), n), w = width / columns;
    for (let c = 0; c < columns; ++c) {
      const from = Math.floor(c * n / columns), to = Math.max(Math.floor((c + 1) * n / columns), from + 1);
      let share = 0, always = false;
      for (let i = from; i < to; ++i) {
        share = Math.max(share, this.shares[i]);
        always ||= this.always[i] === 1;
      }
      g.fillStyle = colour("--always");
      if (always) g.fillRect(c * w, 0, w + 0.5, height);
      const depth = most > 0 ? share / most : 0;
      g.fillStyle = `rgb(${colour("--bar")} / ${0.25 + 0.75 * Math.sqrt(depth)})`;
      if (share > 0) g.fillRect(c * w, height * 0.92 * (1 - depth), Math.max(w - (w > 4 ? 1 : 0), 1), height);
    }
    const [top, bottom] = this.visible();
    g.strokeStyle = colour("--accent");
    g.lineWidth = 2;
    g.strokeRect(top / n * width + 1, 1, Math.max((bottom + 1 - top) / n * width - 2, 3), height - 2);
    this.strip.setAttribute("aria-valuenow", Math.round(100 * top / Math.max(n - 1, 1)));
    this.strip.setAttribute("aria-valuetext", `tokens ${count(32 * top)} to ${count(32 * (bottom + 1))}`);
  }
}

// [name, value] of what the server told about an answer. bytesPerToken: keys and values of one token, in all layers.
function figuresOf(turn, bytesPerToken) {
  const rows = [], usage = turn.usage, r = turn.retrieval;
  const size = bytes => bytes >= 1048576 ? (bytes / 1048576).toFixed(1) + " MiB" : Math.round(bytes / 1024) + " KiB";
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    rows.push(["Prompt", `${count(usage.prompt_tokens)} tokens, ${count(cached)} of them cached`]);
    rows.push(["Answer", `${count(usage.completion_tokens)} tokens in ${turn.seconds.toFixed(2)} s`]);
  }
  if (!r) return rows;
  rows.push(["Method", r.method + (turn.budget ? ", budget " + count(turn.budget) : "")]);
  if (r.decode_seconds > 0 && r.steps > 0)
    rows.push(["Decode",
               (r.steps / r.decode_seconds).toFixed(1) + " tokens/s, prefill " + r.prefill_seconds.toFixed(2) + " s"]);
  if (r.kv_bytes_per_step > 0) {
    const all = usage && bytesPerToken ? usage.prompt_tokens * bytesPerToken : 0;
    const share = all > r.kv_bytes_per_step ? `, ${percent(r.kv_bytes_per_step / all)} of the prompt's` : "";
    rows.push(["Read per step", size(r.kv_bytes_per_step) + " of KV cache" + share]);
  }
  if (r.index_bytes_per_step > 0) rows.push(["Index per step", size(r.index_bytes_per_step)]);
  if (r.selections + r.reused > 0) rows.push(["Selections", `${count(r.selections)}, and ${count(r.reused)} reused`]);
  if (r.correction_checks > 0)
    rows.push(["Corrections", `${percent(r.correction_rate)} of ${count(r.correction_checks)} checks`]);
  if (r.pages_queried > 0) rows.push(["Turnover", percent(r.turnover) + " of the selected units a step"]);
  if (r.h2d_bytes > 0)
    rows.push(["Recalled", `${count(r.recalled_pages)} units, ${size(r.h2d_bytes)} from host memory`]);
  return rows;
}
