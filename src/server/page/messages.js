// What a conversation sends, and what comes back: messages, tools, and the events of a stream.

// An answer, with what its calls returned. A call without a result, which ended the conversation, has an empty one: a
// template refuses a call that nothing follows.
function messagesOf({answer, calls}) {
  if (!calls?.length) return [{role: "assistant", content: answer}];
  const made = calls.map(c => ({id: c.id, type: "function", function: {name: c.name, arguments: c.arguments}}));
  return [{role: "assistant", content: answer || null, tool_calls: made},
          ...calls.map(c => ({role: "tool", tool_call_id: c.id, content: c.result ?? ""}))];
}

async function messagesFor(c, turn) {
  const text = (await textOf(c)).trimEnd(), out = [];
  if (c.system) out.push({role: "system", content: c.system});
  let first = true;
  for (const t of [...c.turns.slice(0, c.turns.indexOf(turn)).filter(t => (t.answer || t.calls?.length) && !t.partial), turn]) {
    out.push({role: "user", content: first && text ? text + BETWEEN + t.question : t.question});
    for (const step of t.steps ?? []) out.push(...messagesOf(step));
    if (t !== turn) out.push(...messagesOf(t));
    first = false;
  }
  return out;
}

// The tools that the model may call, as the settings have them; undefined: none.
function toolsOf(c) {
  if (!c.tools?.trim()) return undefined;
  let tools;
  try { tools = JSON.parse(c.tools); } catch (e) { throw new Error(`Settings, tools: no JSON: ${e.message}`); }
  if (!Array.isArray(tools)) throw new Error("Settings, tools: expected a JSON array of tools.");
  return tools;
}

function requestFor(messages, turn, tools) {
  return {messages, tools, stream: true, stream_options: {include_usage: true, include_progress: true},
          kv: turn.method ? {method: turn.method, budget: turn.budget} : undefined, kv_retrieval: true, kv_reads: true,
          max_tokens: numberIn("max_tokens") ?? 512, temperature: numberIn("temperature") ?? 0,
          top_p: numberIn("top_p") ?? 1, seed: numberIn("seed")};
}

function takeCall(turn, part) {
  const call = turn.calls[part.index] ??= {id: part.id, name: part.function.name, arguments: ""};
  call.arguments += part.function?.arguments ?? "";
}

function take(turn, event) {
  if (event.error) throw new Error(event.error.message);
  if (event.usage) turn.usage = event.usage;
  if (event.prompt_progress) {
    turn.progress = event.prompt_progress;
    turn.state = "reading";
  }
  for (const choice of event.choices ?? []) {
    turn.answer += choice.delta.content ?? "";
    turn.thought += choice.delta.reasoning_content ?? choice.delta.reasoning ?? "";
    for (const part of choice.delta.tool_calls ?? []) takeCall(turn, part);
    turn.state = "answering";
    if (choice.kv_retrieval) turn.retrieval = choice.kv_retrieval;
    if (choice.kv_reads) turn.reads = choice.kv_reads;
    if (choice.finish_reason) turn.finish = choice.finish_reason;
  }
}
