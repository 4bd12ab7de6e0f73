#include "src/text/jinja/value/print.h"

#include <array>
#include <charconv>
#include <cmath>

#include "src/text/jinja/value/escaped.h"
#include "src/text/unicode/unicode_case.h"

namespace mneme::jinja {
namespace {

// A number in hexadecimal with `width` digits.
std::string hex(char32_t c, int width) {
  return fmt::format("{:0{}x}", std::uint32_t{c}, width);
}

void repr_text(const Text& text, TextBuilder& out) {
  const bool single = text.view().find('\'') != std::string_view::npos;
  const bool twice = text.view().find('"') != std::string_view::npos;
  const char quote = single && !twice ? '"' : '\'';
  out.add(std::string_view(&quote, 1));
  print_escaped(text, out, [&](char32_t c) -> std::string {
    if (c == static_cast<char32_t>(quote) || c == '\\') return std::string("\\") + static_cast<char>(c);
    if (c == '\n') return "\\n";
    if (c == '\r') return "\\r";
    if (c == '\t') return "\\t";
    if (unicode::is_printable(c)) return {};
    return c < 0x100 ? "\\x" + hex(c, 2) : c < 0x10000 ? "\\u" + hex(c, 4) : "\\U" + hex(c, 8);
  });
  out.add(std::string_view(&quote, 1));
}

std::string_view opening(List::Kind kind) {
  switch (kind) {
    case List::Kind::kTuple:
      return "(";
    case List::Kind::kKeys:
      return "dict_keys([";
    case List::Kind::kValues:
      return "dict_values([";
    case List::Kind::kItems:
      return "dict_items([";
    default:
      return "[";
  }
}
std::string_view closing(const List& list) {
  if (list.kind == List::Kind::kList) return "]";
  if (list.kind == List::Kind::kTuple) return list.items.size() == 1 ? ",)" : ")";
  return "])";
}

void repr_range(const List& list, TextBuilder& out) {
  const auto at = [&](std::size_t i) { return list.items[i].as_integer(); };
  if (!list.label.empty()) return out.add(list.label);
  if (list.items.empty()) return out.add("range(0, 0)");
  const std::int64_t step = list.items.size() > 1 ? at(1) - at(0) : 1;
  const std::int64_t end = at(list.items.size() - 1) + step;
  out.add(step == 1 ? fmt::format("range({}, {})", at(0), end) : fmt::format("range({}, {}, {})", at(0), end, step));
}

void repr_list(Run& run, const List& list, TextBuilder& out) {
  if (list.kind == List::Kind::kRange) return repr_range(list, out);
  if (list.kind == List::Kind::kGenerator) return out.add("<generator object>");
  out.add(opening(list.kind));
  bool first = true;
  for (const Value& v : list.items) {
    if (!first) out.add(", ");
    first = false;
    print_repr(run, v, out);
  }
  out.add(closing(list));
}

void repr_dict(Run& run, const std::vector<std::pair<Value, Value>>& items, TextBuilder& out) {
  out.add("{");
  bool first = true;
  for (const auto& [key, value] : items) {
    if (!first) out.add(", ");
    first = false;
    print_repr(run, key, out);
    out.add(": ");
    print_repr(run, value, out);
  }
  out.add("}");
}

void repr_namespace(Run& run, const Namespace& object, TextBuilder& out) {
  out.add("<Namespace {");
  bool first = true;
  for (const auto& [name, value] : object.attributes) {
    if (!first) out.add(", ");
    first = false;
    repr_text(Text(name), out);
    out.add(": ");
    print_repr(run, value, out);
  }
  out.add("}>");
}

}  // namespace

std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 40> buffer{};
  const auto [end, error] =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
  const std::string_view all(buffer.data(), end - buffer.data());
  const std::size_t e = all.find('e');
  const bool minus = all[0] == '-';
  std::string digits;
  for (const char c : all.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  int exponent = 0;
  const std::size_t sign = all[e + 1] == '+' ? 1 : 0;
  std::from_chars(all.data() + e + 1 + sign, all.data() + all.size(), exponent);
  std::string out = minus ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out + "0." + std::string(-exponent - 1, '0') + digits;
  const std::size_t whole = exponent + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

void print_repr(Run& run, const Value& v, TextBuilder& out) {
  const Run::RecursionGuard deeper(run);
  if (v.text() != nullptr) return repr_text(*v.text(), out);
  if (v.undefined() != nullptr) return out.add("Undefined");
  print(run, v, out);
}

void print(Run& run, const Value& v, TextBuilder& out) {
  const Run::RecursionGuard deeper(run);
  if (v.text() != nullptr) {
    out.add(*v.text());
  } else if (v.is_none()) {
    out.add("None");
  } else if (v.boolean() != nullptr) {
    out.add(*v.boolean() ? "True" : "False");
  } else if (v.integer() != nullptr) {
    out.add(std::to_string(*v.integer()));
  } else if (v.real() != nullptr) {
    out.add(real_text(*v.real()));
  } else if (v.list() != nullptr) {
    repr_list(run, *v.list(), out);
  } else if (v.dict() != nullptr) {
    repr_dict(run, v.dict()->items, out);
  } else if (v.name_space() != nullptr) {
    repr_namespace(run, *v.name_space(), out);
  } else if (v.callable() != nullptr) {
    const bool macro = v.callable()->kind == Callable::Kind::kMacro;
    out.add(macro ? "<Macro '" + v.callable()->name + "'>" : "<function " + v.callable()->name + ">");
  } else if (v.loop() != nullptr) {
    out.add(fmt::format("<LoopContext {}/{}>", v.loop()->index + 1, v.loop()->items->items.size()));
  }
}

Text to_text(Run& run, const Value& v) {
  if (v.text() != nullptr) return *v.text();
  TextBuilder out(run);
  print(run, v, out);
  return out.finish();
}

}  // namespace mneme::jinja
