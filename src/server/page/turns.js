// One question and its answer on the page: text, progress, an error beside it, and what can be done with it.

function button(label, act, title) {
  const b = element("button", label);
  b.type = "button";
  b.addEventListener("click", act);
  if (title) b.setAttribute("aria-label", title);
  return b;
}

async function copyText(text) {
  if (navigator.clipboard && isSecureContext) {
    try {
      return await navigator.clipboard.writeText(text);
    } catch (e) { /* not allowed: the older way */ }
  }
  const area = element("textarea");
  area.value = text;
  area.className = "hidden";
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("the browser does not let the page copy");
}

// Closed until somebody opens it.
function folded(name, title, ...inside) {
  const details = element("details", element("summary", title), ...inside);
  details.className = name;
  return details;
}

// A call of a tool, folded: its arguments, and what it returned, which the person types.
class CallView {
  constructor(call, open, acts) {
    this.call = call;
    this.made = element("pre");
    this.result = element(open ? "textarea" : "pre");
    const label = element("label", "Result", this.result);
    this.root = folded("call", "Call: " + call.name, this.made, label);
    if (open) {
      this.result.rows = 2;
      this.result.value = call.result ?? "";
      this.result.addEventListener("input", () => { call.result = this.result.value; acts.keep(); });
    } else {
      this.result.textContent = call.result ?? "";
    }
    this.update(false);
  }

  update(works) {
    let text = this.call.arguments;
    if (!works) try { text = JSON.stringify(JSON.parse(text), null, 1); } catch (e) { /* as the model wrote it */ }
    if (this.made.textContent !== text) this.made.textContent = text;
  }
}

const IN_WORK = ["waiting", "reading", "answering"];

class TurnView {
  // acts: {regenerate(turn), goOn(turn), sendResults(turn), keep(), select(turn), say(text)}.
  constructor(turn, acts) {
    this.turn = turn;
    this.acts = acts;
    this.root = element("article");
    this.root.className = "turn";
    this.question = element("div", turn.question);
    this.question.className = "question";
    this.steps = element("div");
    this.thought = folded("thought", "Thought", element("div"));
    this.thoughtText = this.thought.lastChild;
    this.calls = element("div");
    this.callViews = [];
    this.answer = element("div");
    this.answer.className = "answer";
    this.progress = element("div");
    this.progress.className = "progress";
    this.problem = element("div");
    this.problem.className = "problem";
    this.problem.setAttribute("role", "alert");
    this.actions = element("div");
    this.actions.className = "actions";
    this.root.append(this.question, this.steps, this.thought, this.answer, this.calls, this.progress, this.problem,
                     this.actions);
    this.update(false);
  }

  update(selected) {
    const t = this.turn, works = IN_WORK.includes(t.state);
    this.root.dataset.state = t.state;
    this.root.classList.toggle("selected", selected);
    if (this.shown !== t.answer) {
      this.answer.replaceChildren(...renderMarkdown(t.answer));
      this.shown = t.answer;
    }
    this.thought.hidden = !t.thought;
    if (t.thought && this.thoughtText.textContent !== t.thought) this.thoughtText.textContent = t.thought;
    this.showSteps();
    this.showCalls(works);
    this.showProgress(works && !t.answer && !t.thought && !t.calls?.length);
    this.showProblem();
    const key = [t.state, selected, t.answer !== "", t.finish].join();
    if (key !== this.key) this.showActions(works, selected);
    this.key = key;
  }

  // Answers before this one that called tools.
  showSteps() {
    const steps = this.turn.steps ?? [];
    if (this.stepsShown === steps.length) return;
    this.stepsShown = steps.length;
    this.steps.replaceChildren(...steps.flatMap(step => {
      const text = element("div", ...renderMarkdown(step.answer));
      text.className = "answer";
      return [...(step.thought ? [folded("thought", "Thought", element("div", step.thought))] : []), text,
              ...step.calls.map(call => new CallView(call, false, this.acts).root)];
    }));
  }

  showCalls(works) {
    const calls = this.turn.calls ?? [];
    if (this.callViews.length > calls.length || this.callViews.some((v, i) => v.call !== calls[i])) {
      this.calls.replaceChildren();
      this.callViews = [];
    }
    for (const call of calls.slice(this.callViews.length)) {
      this.callViews.push(new CallView(call, true, this.acts));
      this.calls.append(this.callViews.at(-1).root);
    }
    this.callViews.forEach(v => v.update(works));
  }

  showProgress(shown) {
    this.progress.hidden = !shown;
    if (!shown) {
      this.progress.replaceChildren();
      this.bar = null;
      return;
    }
    if (!this.bar) {
      this.bar = element("progress");
      this.bar.setAttribute("aria-label", "Prompt read");
      this.words = element("span");
      this.progress.replaceChildren(this.words, this.bar);
    }
    const p = this.turn.progress;
    this.bar.hidden = !p;
    if (!p) {
      this.words.textContent = "Waiting for the server…";
      return;
    }
    this.bar.max = p.total;
    this.bar.value = p.processed;
    const seconds = p.time_ms / 1000, done = p.processed - p.cache;
    const left = done > 0 ? seconds / done * (p.total - p.processed) : 0;
    this.words.textContent = `Reading the prompt: ${count(p.processed)} of ${count(p.total)} tokens` +
        (left >= 1.5 ? `, about ${Math.round(left)} s left` : "");
  }

  showProblem() {
    const t = this.turn, ends = {stopped: "Stopped.", cut: "Ended at the longest answer that the settings allow."};
    const text = t.error || ends[t.state] || "";
    this.problem.hidden = !text;
    this.problem.classList.toggle("wrong", Boolean(t.error));
    if (this.problem.textContent !== text) this.problem.textContent = text;
  }

  showActions(works, selected) {
    const t = this.turn, all = [];
    if (!works && t.answer) {
      all.push(button("Copy", async e => {
        const b = e.currentTarget;
        try {
          await copyText(t.answer);
          b.textContent = "Copied";
        } catch (problem) {
          b.textContent = "Not copied";
          this.acts.say(problem.message);
        }
        setTimeout(() => { b.textContent = "Copy"; }, 1500);
      }));
    }
    if (!works && t.finish === "tool_calls") all.push(button("Send results", () => this.acts.sendResults(t)));
    if (t.state === "cut" && t.answer) all.push(button("Continue", () => this.acts.goOn(t)));
    if (!works) all.push(button(t.error ? "Retry" : "Regenerate", () => this.acts.regenerate(t)));
    if (!works && t.answer) {
      const reads = button("What it read", () => this.acts.select(t));
      reads.setAttribute("aria-pressed", String(selected));
      all.push(reads);
    }
    this.actions.replaceChildren(...all);
    this.actions.hidden = all.length === 0;
  }
}
