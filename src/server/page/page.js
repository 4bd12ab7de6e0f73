// The page: conversations, the document, questions, and answers as the server streams them.

const store = new Store(), reads = new Reads();
const running = new Map();  // conversation id -> {controller, turn}
const texts = new Map();    // document key -> text
const layouts = new Map();  // document key and system text -> promise of a layout
const SETTINGS = ["method", "budget", "temperature", "top_p", "max_tokens", "seed"];
const LAYOUTS_KEPT = 4;
const BETWEEN = "\n\n\n";  // document and question
let props = null, current = null, views = [], selected = null, saving = 0;

// ---- the server

function headers() {
  const h = {"Content-Type": "application/json"};
  if (byId("key").value) h.Authorization = "Bearer " + byId("key").value;
  return h;
}

async function call(path, body, signal) {
  let r;
  try {
    r = await fetch(path, body === undefined ? {headers: headers(), signal} :
        {method: "POST", headers: headers(), body: JSON.stringify(body), signal});
  } catch (e) {
    throw e.name === "AbortError" ? e : new Error("The server does not answer. Is it running?");
  }
  if (r.ok) return r;
  let message = r.status + " " + r.statusText;
  try { message = (await r.json()).error.message; } catch (e) { /* no JSON: the status says it */ }
  throw new Error(message);
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const {value, done} = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
  }
}

async function describe() {
  try {
    props = await (await call("/props")).json();
    byId("model").textContent =
        `${props.model}, context ${count(props.max_model_len)}, ` +
        `${count(props.threads)} thread${props.threads === 1 ? "" : "s"}`;
    byId("model").title = byId("model").textContent;
    if (byId("method").value === "") {
      byId("method").replaceChildren(
          ...props.kv_methods.map(m => new Option(m, m, m === props.kv.method, m === props.kv.method)));
      loadSettings();
      showMethod();
    }
    problem("");
  } catch (e) {
    byId("model").textContent = "";
    problem(e.message);
  }
}

function problem(text) {
  byId("error").textContent = text;
}

function say(text) {
  byId("said").textContent = text;
}

// ---- conversations

function saveSoon() {
  saving ||= setTimeout(saveNow, 200);
}

function saveNow() {
  if (!saving && running.size === 0) return;  // another tab may have written since
  clearTimeout(saving);
  saving = 0;
  const all = [current, ...[...running.values()].map(r => r.conversation)];
  const worth = c => c && !c.removed && (c.turns.length || c.draft || c.document || c.system);
  for (const c of new Set(all)) if (worth(c)) store.save(c);
}

function create(like) {
  return {id: Date.now().toString(36) + Math.random().toString(36).slice(2, 6), title: "", updated: Date.now(),
          system: like?.system ?? "", tools: like?.tools ?? "", draft: "", document: like?.document ?? null, turns: []};
}

function titleOf(c) {
  return c.title || c.turns[0]?.question.slice(0, 80) || "New conversation";
}

function listItem(c) {
  const open = button(titleOf(c), () => { openConversation(c); setMenu(false); });
  open.className = "open";
  if (c.id === current.id) open.setAttribute("aria-current", "true");
  const item = element("li", open, button("✎", () => rename(c, item), "Rename " + titleOf(c)),
                       button("×", () => removeConversation(c), "Delete " + titleOf(c)));
  item.classList.toggle("running", running.has(c.id));
  return item;
}

function showList() {
  const all = store.conversations().map(c => c.id === current.id ? current : running.get(c.id)?.conversation ?? c);
  if (!all.some(c => c.id === current.id)) all.unshift(current);
  byId("list").replaceChildren(...all.map(listItem));
}

function rename(c, item) {
  const input = element("input");
  input.value = titleOf(c);
  input.setAttribute("aria-label", "Title");
  let ended = false;
  const end = keep => {
    if (ended) return;
    ended = true;
    if (keep && input.value.trim()) {
      c.title = input.value.trim();
      store.save(c);
    }
    showList();
  };
  input.addEventListener("keydown", e => {
    if (e.key === "Enter" || e.key === "Escape") { e.stopPropagation(); end(e.key === "Enter"); }
  });
  input.addEventListener("blur", () => end(true));
  item.replaceChildren(input);
  input.select();
}

function removeConversation(c) {
  if (!confirm(`Delete "${titleOf(c)}"?`)) return;
  running.get(c.id)?.controller.abort();
  c.removed = true;
  store.remove(c);
  store.sweep();
  if (c.id === current.id) openConversation(store.conversations()[0] ?? create());
  else showList();
}

function newConversation() {
  saveNow();
  openConversation(create(current));
  byId("question").focus();
}

function openConversation(c) {
  if (current) saveNow();
  current = running.get(c.id)?.conversation ?? mend(c);
  selected = current.turns.findLast(t => t.retrieval) ?? null;
  byId("question").value = current.draft;
  byId("system").value = current.system;
  byId("tools").value = current.tools ?? "";
  store.write("mneme.current", current.id);
  setEditing(!current.document && current.turns.length === 0);
  showDocument();
  showTurns();
  showList();
  showReads(false);
}

function showTurns() {
  views = current.turns.map(t => new TurnView(t, acts));
  byId("turns").replaceChildren(...views.map(v => v.root));
  views.forEach(v => v.update(v.turn === selected));
  byId("turns").scrollTop = byId("turns").scrollHeight;
  showState();
}

function showState() {
  const works = running.has(current.id);
  byId("send").hidden = works;
  byId("stop").hidden = !works;
  byId("turns").setAttribute("aria-busy", String(works));
}

// ---- the document

async function textOf(c) {
  if (!c.document) return "";
  const key = c.document.key;
  if (!texts.has(key)) texts.set(key, await store.document(key));
  const text = texts.get(key);
  if (text === undefined) throw new Error(`The browser has not kept the document ${c.document.name}. Open it again.`);
  return text;
}

function setDocument(text, name) {
  const key = textKey(text);
  current.document = text ? {name, key, length: text.length} : null;
  if (text) {
    texts.set(key, text);
    store.saveDocument(key, text);
  }
  saveSoon();
  showDocument();
}

async function showDocument() {
  const d = current.document, c = current;
  byId("document-name").textContent = d ? d.name : "No document";
  byId("document-size").textContent = d ? count(d.length) + " characters" : "";
  byId("remove").hidden = !d;
  let text = "";
  try { text = await textOf(c); } catch (e) { problem(e.message); }
  const field = byId("document");
  if (c === current && !byId("document-edit").hidden && field.value !== text) field.value = text;
}

function setEditing(on) {
  byId("document-edit").hidden = !on;
  byId("edit").setAttribute("aria-expanded", String(on));
  byId("edit").textContent = on ? "Close" : current?.document ? "Edit" : "Paste text";
}

async function openFile(file) {
  if (!file) return;
  try {
    const text = new TextDecoder("utf-8", {fatal: true}).decode(await file.arrayBuffer());
    if (text.includes("\0")) throw new Error();
    problem("");
    setEditing(false);
    setDocument(text, file.name);
  } catch (e) {
    problem(`${file.name} is not text in UTF-8.`);
  }
}

// ---- questions and answers

function numberIn(id) {
  const value = byId(id).value;
  return value === "" || !Number.isFinite(Number(value)) ? undefined : Number(value);
}

// Streams one answer into `turn`. What the turn had before comes back where nothing new does. `goOn`: the answer that
// is there is continued. `steps`: answers that called tools, with their results, which this one follows.
async function answer(c, turn, {goOn = false, steps = []} = {}) {
  const before = {...turn}, controller = new AbortController(), start = performance.now();
  Object.assign(turn, {answer: "", thought: "", calls: [], steps, error: "", state: "waiting", finish: "", usage: null, retrieval: null,
                       reads: null, progress: null, seconds: 0, partial: false, method: byId("method").value,
                       budget: byId("method").value === "full" ? undefined : numberIn("budget"),
                       system: c.system, document: c.document?.key ?? ""});
  running.set(c.id, {controller, turn, conversation: c});
  c.updated = Date.now();
  if (c === current) select(turn);
  showState();
  showList();
  try {
    const messages = await messagesFor(c, turn);
    if (goOn) messages.push({role: "assistant", content: before.answer});
    const request = {...requestFor(messages, turn, toolsOf(c)), continue_final_message: goOn || undefined};
    if (goOn) turn.answer = before.answer;
    const response = await call("/v1/chat/completions", request, controller.signal);
    for await (const event of events(response)) {
      take(turn, event);
      turn.seconds = (performance.now() - start) / 1000;
      showTurn(c, turn, !reads.layout || Boolean(event.choices?.[0]?.kv_reads));
      saveSoon();
    }
    if (!turn.finish) throw new Error("The connection ended before the answer was complete.");
    turn.state = turn.finish === "length" ? "cut" : "done";
  } catch (e) {
    const stopped = e.name === "AbortError";
    const nothingNew = !turn.answer && !turn.calls.length || goOn && turn.answer === before.answer;
    if (nothingNew && (before.answer || before.calls?.length)) Object.assign(turn, before, stopped ? {} : {error: e.message, state: "error"});
    else if (stopped) turn.state = "stopped";
    else Object.assign(turn, {error: e.message, state: "error", partial: true});
  }
  running.delete(c.id);
  if (!c.removed) store.save(c);
  showTurn(c, turn, true);
  if (c === current) showState();
  showList();
  say({done: "The answer is complete.", cut: "The answer is complete.", stopped: "Stopped."}[turn.state] ?? "");
}

function showTurn(c, turn, painted) {
  if (c !== current) return;
  const log = byId("turns"), atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  views.find(v => v.turn === turn)?.update(turn === selected);
  if (atEnd) log.scrollTop = log.scrollHeight;
  if (painted && turn === selected) showReads(true);
}

function ask(question) {
  const turn = {question, answer: "", state: "waiting"};
  current.turns.push(turn);
  current.draft = "";
  setEditing(false);
  showTurns();
  return answer(current, turn);
}

const acts = {
  regenerate(turn) {
    if (running.has(current.id)) return;
    answer(current, turn);
    byId("question").focus();
  },
  goOn(turn) {
    if (running.has(current.id)) return;
    answer(current, turn, {goOn: true});
    byId("question").focus();
  },
  sendResults(turn) {
    if (running.has(current.id)) return;
    answer(current, turn, {steps: [...turn.steps ?? [], {answer: turn.answer, thought: turn.thought, calls: turn.calls}]});
    byId("question").focus();
  },
  keep: saveSoon,
  select(turn) {
    select(turn);
    showView("reads");
  },
  say,
};

// ---- what was read

function select(turn) {
  selected = turn;
  reads.painted = null;
  views.forEach(v => v.update(v.turn === selected));
  showReads(false);
}

function layoutName(key, system) {
  return key + "\n" + system;
}

// The document in pages, asked for once: the first tokens of a prompt are the same whatever is asked.
function layoutOf(key, system, text) {
  const name = layoutName(key, system);
  if (!layouts.has(name)) {
    const messages = [{role: "user", content: text + BETWEEN}];
    if (system) messages.unshift({role: "system", content: system});
    const reply = call("/tokenize", {messages, with_pieces: true}).then(r => r.json());
    layouts.set(name, reply.then(r => layOut(r.tokens, text)));
    layouts.get(name).catch(() => layouts.delete(name));
    if (layouts.size > LAYOUTS_KEPT) layouts.delete(layouts.keys().next().value);
  }
  return layouts.get(name);
}

async function showReads(scroll) {
  const turn = selected, c = current, hint = hintFor(turn);
  byId("figures").replaceChildren(...(turn ? figuresOf(turn, props?.kv_bytes_per_token) : []).flatMap(([name, value]) =>
      [element("dt", name), element("dd", value)]));
  if (hint) return reads.clear(hint);
  // Before the server started, nothing more is asked of it.
  const begun = turn.progress || turn.answer || turn.retrieval;
  if (!begun && !layouts.has(layoutName(turn.document, turn.system))) return reads.clear("Nothing is read yet.");
  try {
    const text = (await textOf(c)).trimEnd(), layout = await layoutOf(turn.document, turn.system, text);
    if (turn !== selected || c !== current) return;
    reads.setLayout(layout);
    byId("hint").textContent = remarkOn(turn);
    // Scrolls to what the first steps read, and once more to what all of them did.
    const stage = turn.retrieval ? 2 : turn.reads ? 1 : 0;
    reads.paint(turn, (scroll || stage === 2) && stage > (reads.painted ?? 0));
    reads.painted = stage;
  } catch (e) {
    if (turn === selected) reads.clear("The document cannot be shown: " + e.message);
  }
}
