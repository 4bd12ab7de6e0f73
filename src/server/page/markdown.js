// Markdown to DOM nodes: headings, lists, quotes, tables, code, emphasis and links. What a model writes never becomes
// markup: text goes into text nodes alone, and a link is one only where it begins with http:// or https://.

const INLINE = new RegExp([
  /(?<code>`+)(?<codeText>[^`]|[^`][\s\S]*?[^`])\k<code>(?!`)/,
  /\[(?<linkText>[^\]\n]+)\]\((?<linkTo>[^\s()]+)\)/,
  /(?<bare>https?:\/\/[^\s<>()[\]"'`]*[^\s<>()[\]"'`.,;:!?*_])/,
  /\*\*(?<bold>\S|\S[\s\S]*?\S)\*\*(?!\*)/,
  /__(?<bold2>\S|\S[\s\S]*?\S)__(?!\w)/,
  /\*(?<italic>[^\s*]|[^\s*][^*]*?[^\s*])\*/,
  /(?<!\w)_(?<italic2>[^\s_]|[^\s_][^_]*?[^\s_])_(?!\w)/,
  /~~(?<struck>\S|\S[\s\S]*?\S)~~/,
  /\\(?<escaped>[\\`*_{}[\]()#+.!~|>-])/,
].map(part => part.source).join("|"), "g");
const DEEPEST = 8;

function element(name, ...children) {
  const e = document.createElement(name);
  e.append(...children);
  return e;
}

function link(to, children) {
  if (!/^https?:\/\//i.test(to)) return element("span", ...children);
  const a = element("a", ...children);
  a.href = to;
  a.target = "_blank";
  a.rel = "noopener noreferrer";
  return a;
}

function inlineNode(groups, depth) {
  const inside = text => inlineNodes(text, depth + 1);
  if (groups.codeText !== undefined) return element("code", groups.codeText);
  if (groups.linkTo !== undefined) return link(groups.linkTo, inside(groups.linkText));
  if (groups.bare !== undefined) return link(groups.bare, [groups.bare]);
  const bold = groups.bold ?? groups.bold2, italic = groups.italic ?? groups.italic2;
  if (bold !== undefined) return element("strong", ...inside(bold));
  if (italic !== undefined) return element("em", ...inside(italic));
  if (groups.struck !== undefined) return element("del", ...inside(groups.struck));
  return document.createTextNode(groups.escaped);
}

function inlineNodes(text, depth = 0) {
  if (depth > DEEPEST) return [document.createTextNode(text)];
  const out = [];
  let from = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > from) out.push(document.createTextNode(text.slice(from, found.index)));
    out.push(inlineNode(found.groups, depth));
    from = found.index + found[0].length;
  }
  if (from < text.length) out.push(document.createTextNode(text.slice(from)));
  return out;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)(.*)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const TABLE_LINE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

function startsBlock(lines, at) {
  const line = lines[at];
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line) ||
      startsTable(lines, at);
}

function startsTable(lines, at) {
  const below = lines[at + 1] ?? "";
  return lines[at].includes("|") && below.includes("-") && below.includes("|") && TABLE_LINE.test(below);
}

// Each takes the lines from `at` on and returns [node, the line after it].
function codeBlock(lines, at) {
  const [, fence, language] = lines[at].match(FENCE);
  const ends = new RegExp("^ {0,3}\\" + fence[0] + "{" + fence.length + ",}\\s*$");
  let end = at + 1;
  while (end < lines.length && !ends.test(lines[end])) ++end;
  const pre = element("pre", element("code", lines.slice(at + 1, end).join("\n")));
  pre.tabIndex = 0;
  if (language) pre.dataset.language = language;
  return [pre, end + 1];
}

function tableCells(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map(cell => cell.trim());
}

function table(lines, at) {
  const row = (line, cell) => element("tr", ...tableCells(line).map(text => element(cell, ...inlineNodes(text))));
  const body = element("tbody");
  let end = at + 2;
  for (; end < lines.length && lines[end].includes("|"); ++end) body.append(row(lines[end], "td"));
  const box = element("div", element("table", element("thead", row(lines[at], "th")), body));
  box.className = "wide";
  box.tabIndex = 0;
  return [box, end];
}

function quote(lines, at, depth) {
  const inside = [];
  for (; at < lines.length && QUOTE.test(lines[at]); ++at) inside.push(lines[at].match(QUOTE)[1]);
  return [element("blockquote", ...blocks(inside, depth + 1)), at];
}

function list(lines, at, depth) {
  const [, indent, mark] = lines[at].match(ITEM), ordered = /\d/.test(mark);
  const out = element(ordered ? "ol" : "ul");
  if (ordered && parseInt(mark, 10) !== 1) out.start = parseInt(mark, 10);
  while (at < lines.length) {
    const item = lines[at].match(ITEM);
    if (!item || RULE.test(lines[at]) || item[1].length < indent.length || /\d/.test(item[2]) !== ordered) break;
    const inside = [item[4]];
    for (++at; at < lines.length; ++at) {
      const deeper = lines[at].search(/\S/) > indent.length;
      if (!deeper && (lines[at].trim() !== "" || !/^\s+\S/.test(lines[at + 1] ?? "") ||
                      lines[at + 1].search(/\S/) <= indent.length)) break;
      inside.push(lines[at].slice(Math.min(indent.length + 2, Math.max(lines[at].search(/\S/), 0))));
    }
    out.append(element("li", ...blocks(inside, depth + 1, true)));
    while (at + 1 < lines.length && lines[at].trim() === "" && ITEM.test(lines[at + 1])) ++at;
  }
  return [out, at];
}

function paragraph(lines, at, tight) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== "" && !startsBlock(lines, end)) ++end;
  const nodes = inlineNodes(lines.slice(at, end).join("\n").trim());
  return [tight ? element("span", ...nodes) : element("p", ...nodes), end];
}

function block(lines, at, depth, tight) {
  if (FENCE.test(lines[at])) return codeBlock(lines, at);
  const heading = lines[at].match(HEADING);
  // The page's own headings are h1 and h2.
  if (heading) return [element("h" + Math.min(heading[1].length + 2, 6), ...inlineNodes(heading[2])), at + 1];
  if (RULE.test(lines[at])) return [element("hr"), at + 1];
  if (depth <= DEEPEST && QUOTE.test(lines[at])) return quote(lines, at, depth);
  if (depth <= DEEPEST && ITEM.test(lines[at])) return list(lines, at, depth);
  if (startsTable(lines, at)) return table(lines, at);
  return paragraph(lines, at, tight);
}

function blocks(lines, depth = 0, tight = false) {
  const out = [];
  for (let at = 0; at < lines.length;) {
    if (lines[at].trim() === "") { ++at; continue; }
    const [node, next] = block(lines, at, depth, tight);
    out.push(node);
    at = next;
  }
  return out;
}

function renderMarkdown(text) {
  return blocks(text.replace(/\r\n?/g, "\n").split("\n"));
}
