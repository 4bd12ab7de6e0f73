#include <algorithm>
#include <cmath>

#include "src/text/jinja/run/ops.h"
#include "src/text/jinja/value/escaped.h"
#include "src/text/jinja/value/print.h"

namespace mneme::jinja {
namespace {

std::string escape_code(char32_t c) {
  return fmt::format("\\u{:04x}", std::uint32_t{c});
}

std::string escape(char32_t c, bool ascii) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    default:
      break;
  }
  if (c < 0x20) return escape_code(c);
  if (!ascii || c < 0x7f) return {};
  if (c < 0x10000) return escape_code(c);
  return escape_code(0xD800 + ((c - 0x10000) >> 10)) + escape_code(0xDC00 + ((c - 0x10000) & 0x3FF));
}

void json_text(const Text& text, bool ascii, TextBuilder& out) {
  out.add("\"");
  print_escaped(text, out, [&](char32_t c) { return escape(c, ascii); });
  out.add("\"");
}

std::string json_real(double v) {
  if (std::isnan(v)) return "NaN";
  if (std::isinf(v)) return v < 0 ? "-Infinity" : "Infinity";
  return real_text(v);
}

class Printer {
 public:
  Printer(Run& run, const JsonStyle& style, TextBuilder& out) : run_(run), style_(style), out_(out) {}

  void value(const Value& v, int level) {
    const Run::RecursionGuard deeper(run_);
    if (v.text() != nullptr) return json_text(*v.text(), style_.ascii, out_);
    if (v.is_none()) return out_.add("null");
    if (v.boolean() != nullptr) return out_.add(*v.boolean() ? "true" : "false");
    if (v.integer() != nullptr) return out_.add(std::to_string(*v.integer()));
    if (v.real() != nullptr) return out_.add(json_real(*v.real()));
    if (v.dict() != nullptr) return dict(*v.dict(), level);
    const bool listed =
        v.list() != nullptr && (v.list()->kind == List::Kind::kList || v.list()->kind == List::Kind::kTuple);
    if (!listed) run_.error("tojson: '{}' has no JSON form", v.type_name());
    if (v.list()->items.empty()) return out_.add("[]");
    out_.add("[");
    bool first = true;
    for (const Value& x : v.list()->items) {
      separate(first, level + 1);
      value(x, level + 1);
    }
    line(level);
    out_.add("]");
  }

 private:
  void line(int level) {
    if (!style_.lines) return;
    out_.add("\n");
    for (int i = 0; i < level; ++i) out_.add(style_.indent);
  }
  void separate(bool& first, int level) {
    if (!first) out_.add(style_.between);
    first = false;
    line(level);
  }
  void key(const Value& k) {
    if (k.text() != nullptr) return json_text(*k.text(), style_.ascii, out_);
    if (!k.is_none() && !k.is_number()) run_.error("tojson: a key of type '{}' has no JSON form", k.type_name());
    out_.add("\"");
    value(k, 0);
    out_.add("\"");
  }
  void dict(const Dict& d, int level) {
    if (d.items.empty()) return out_.add("{}");
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& x : d.items) items.push_back(&x);
    if (style_.sort_keys) {
      run_.spend_work(items.size() * 4);
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto* a, const auto* b) { return less(run_, a->first, b->first); });
    }
    out_.add("{");
    bool first = true;
    for (const auto* x : items) {
      separate(first, level + 1);
      key(x->first);
      out_.add(style_.after_key);
      value(x->second, level + 1);
    }
    line(level);
    out_.add("}");
  }

  Run& run_;
  const JsonStyle& style_;
  TextBuilder& out_;
};

}  // namespace

void print_json(Run& run, const Value& v, const JsonStyle& style, TextBuilder& out) {
  Printer(run, style, out).value(v, 0);
}

}  // namespace mneme::jinja
