// What the controls do, and the first look at what the browser kept.

function saveSettings() {
  store.write("mneme.settings", Object.fromEntries(SETTINGS.map(id => [id, byId(id).value])));
}

function loadSettings() {
  const kept = store.read("mneme.settings") ?? {};
  for (const id of SETTINGS) {
    const known = id !== "method" || [...byId("method").options].some(o => o.value === kept[id]);
    if (typeof kept[id] === "string" && known) byId(id).value = kept[id];
  }
}

// What the selected method does, in a line.
function showMethod() {
  byId("method-note").textContent = props?.kv_method_notes?.[byId("method").value] ?? "";
}

function showView(name) {
  document.body.dataset.view = name;
  for (const view of ["chat", "reads"]) byId("view-" + view).setAttribute("aria-pressed", String(view === name));
  reads.plan();
}

function setMenu(open) {
  document.body.classList.toggle("menu", open);
  byId("menu").setAttribute("aria-expanded", String(open));
}

function connectQuestion() {
  byId("ask").addEventListener("submit", e => {
    e.preventDefault();
    const question = byId("question").value.trim();
    if (!question || running.has(current.id)) return;
    byId("question").value = "";
    problem("");
    ask(question);
    byId("question").focus();
  });
  byId("question").addEventListener("keydown", e => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
      e.preventDefault();
      byId("ask").requestSubmit();
    }
  });
  byId("question").addEventListener("input", () => {
    current.draft = byId("question").value;
    saveSoon();
  });
  const stop = () => running.get(current.id)?.controller.abort();
  byId("stop").addEventListener("click", () => {
    stop();
    byId("question").focus();
  });
  document.addEventListener("keydown", e => {
    if (e.key !== "Escape") return;
    if (document.body.classList.contains("menu")) setMenu(false);
    else if (!byId("settings").open) stop();
  });
}

function connectDocument() {
  const field = byId("document"), chat = byId("chat");
  let typing = 0;
  const typed = () => {
    clearTimeout(typing);
    typing = 0;
    setDocument(field.value, current.document?.name ?? "Pasted text");
  };
  field.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(typed, 150);
  });
  field.addEventListener("change", typed);
  addEventListener("pagehide", () => typing && typed());
  byId("edit").addEventListener("click", () => {
    setEditing(byId("document-edit").hidden);
    showDocument();
    if (!byId("document-edit").hidden) field.focus();
  });
  byId("open-file").addEventListener("click", () => byId("file").click());
  byId("file").addEventListener("change", () => {
    openFile(byId("file").files[0]);
    byId("file").value = "";
  });
  byId("remove").addEventListener("click", () => {
    setDocument("", "");
    field.value = "";
    setEditing(true);
    field.focus();
  });
  for (const name of ["dragenter", "dragover"])
    chat.addEventListener(name, e => { e.preventDefault(); chat.classList.add("dropping"); });
  for (const name of ["dragleave", "drop"]) chat.addEventListener(name, () => chat.classList.remove("dropping"));
  chat.addEventListener("drop", e => {
    e.preventDefault();
    openFile(e.dataTransfer.files[0]);
  });
}

// The conversation as Markdown, as a file that the browser saves.
function exportConversation() {
  const lines = [`# ${titleOf(current)}`];
  if (current.document) lines.push(`Document: ${current.document.name}, ${count(current.document.length)} characters`);
  if (current.system) lines.push(`System text: ${current.system}`);
  for (const t of current.turns) {
    const how = [t.method, t.budget && `budget ${count(t.budget)}`].filter(Boolean).join(", ");
    lines.push(`## ${t.question}`);
    for (const step of [...t.steps ?? [], t]) {
      lines.push(step.answer || step.error || "");
      for (const call of step.calls ?? [])
        lines.push(`Call: \`${call.name}(${call.arguments})\``, ...(call.result ? [`Result: ${call.result}`] : []));
    }
    if (how) lines.push(`(${how})`);
  }
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([lines.join("\n\n") + "\n"], {type: "text/markdown"}));
  link.download = titleOf(current).replace(/[^\p{L}\p{N} _-]+/gu, "").trim().slice(0, 60) || "conversation";
  link.download += ".md";
  link.click();
  URL.revokeObjectURL(link.href);
}

function connectSettings() {
  for (const id of SETTINGS) byId(id).addEventListener("change", saveSettings);
  byId("method").addEventListener("change", showMethod);
  byId("export").addEventListener("click", exportConversation);
  byId("open-settings").addEventListener("click", () => byId("settings").showModal());
  byId("system").addEventListener("input", () => {
    current.system = byId("system").value;
    saveSoon();
  });
  byId("tools").addEventListener("input", () => {
    current.tools = byId("tools").value;
    saveSoon();
  });
  byId("key").addEventListener("change", () => {
    try { sessionStorage.setItem("mneme.key", byId("key").value); } catch (e) { /* it is asked for again */ }
    describe();
  });
  try { byId("key").value = sessionStorage.getItem("mneme.key") ?? ""; } catch (e) { /* switched off */ }
}

function connectViews() {
  byId("new").addEventListener("click", () => {
    setMenu(false);
    newConversation();
  });
  byId("menu").addEventListener("click", () => setMenu(!document.body.classList.contains("menu")));
  byId("view-chat").addEventListener("click", () => showView("chat"));
  byId("view-reads").addEventListener("click", () => showView("reads"));
  addEventListener("storage", e => e.key?.startsWith(PREFIX) && showList());
  addEventListener("pagehide", saveNow);
}

// An answer that was under way when the page went keeps its text, and says what happened.
function mend(conversation) {
  for (const t of conversation.turns) {
    if (!IN_WORK.includes(t.state)) continue;
    Object.assign(t, {state: "error", partial: true,
                      error: "The page was closed before the answer was complete."});
  }
  return conversation;
}

function start() {
  store.failed = e => problem(`The browser cannot keep this conversation: ${e.message}`);
  connectQuestion();
  connectDocument();
  connectSettings();
  connectViews();
  const kept = store.conversations(), last = store.read("mneme.current");
  openConversation(kept.find(c => c.id === last) ?? kept[0] ?? create());
  store.sweep();
  describe().then(() => selected && showReads(true));
}

start();
