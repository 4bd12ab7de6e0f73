// Filters of strings and numbers, and the table of all filters.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "src/base/ascii.h"
#include "src/base/underlying.h"
#include "src/text/jinja/run/filter.h"
#include "src/text/jinja/run/format.h"
#include "src/text/jinja/run/method.h"
#include "src/text/jinja/run/ops.h"
#include "src/text/jinja/value/print.h"
#include "src/text/unicode/unicode_case.h"

namespace mneme::jinja {
namespace {

using unicode::Case;

Value filter_default(Run& run, const Value& v, const Arguments& a) {
  const Parameters p(run, "default", a, {"default_value", "boolean"});
  const bool missing = v.undefined() != nullptr || (p.flag(1) && !truth(v));
  return missing ? p.or_else(0, Text()) : v;
}

Value filter_trim(Run& run, const Value& v, const Arguments& a) {
  return strip(run, to_text(run, v), Parameters(run, "trim", a, {"chars"}).something(0), true, true);
}

Value filter_replace(Run& run, const Value& v, const Arguments& a) {
  const Parameters p(run, "replace", a, {"old", "new", "count"});
  const std::int64_t count = p.something(2) != nullptr ? expect_integer(run, p.at(2), "count") : -1;
  return replace(run, to_text(run, v), to_text(run, p.at(0)), to_text(run, p.at(1)),
                 count < 0 ? std::numeric_limits<std::int64_t>::max() : count);
}

// Words start after white space, "-" and opening brackets; a run of those counts as one separator.
Value filter_title(Run& run, const Value& v, const Arguments& a) {
  expect_no_arguments(run, "title", a);
  const Text text = to_text(run, v);
  const std::string_view bytes = text.view();
  const auto parts_words = [&](std::size_t at) {
    const char32_t c = character_at(bytes, at);
    return unicode::is_space(c) || (c < 0x80 && std::string_view("-({[<").find(bytes[at]) != std::string_view::npos);
  };
  TextBuilder out(run);
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t from = at;
    while (at < bytes.size() && parts_words(at)) at += character_length(bytes.substr(at));
    out.add(text, from, at);
    const std::size_t word = at;
    while (at < bytes.size() && !parts_words(at)) at += character_length(bytes.substr(at));
    if (word == at) continue;
    const Text piece = slice(run, text, word, at);
    const std::size_t first = character_length(piece.view());
    add_case(run, piece, 0, first, underlying(Case::kUpper), out);
    // Converted separately: whether a sigma ends the word does not depend on the first letter.
    const Text rest = slice(run, piece, first, piece.size());
    add_case(run, rest, 0, rest.size(), underlying(Case::kLower), out);
  }
  return out.finish();
}

Value filter_indent(Run& run, const Value& v, const Arguments& a) {
  const Parameters p(run, "indent", a, {"width", "first", "blank"});
  const Text text = expect_text(run, v, "indent");
  Text indention;
  if (p.has(0) && p.at(0).text() != nullptr) {
    indention = *p.at(0).text();
  } else {
    const std::int64_t width = p.has(0) ? expect_integer(run, p.at(0), "indent") : 4;
    if (width > 10'000) run.error("indent: wider than 10000");
    indention = Text(std::string(std::max<std::int64_t>(width, 0), ' '));
  }
  const Value lines = split_lines(run, text, false);
  // Python appends a line end before it splits, so that the last line end of a text is kept.
  std::vector<Text> all;
  for (const Value& line : lines.list()->items) all.push_back(*line.text());
  const std::string_view bytes = text.view();
  if (bytes.empty() || unicode::is_line_end(character_at(bytes, byte_of_character(bytes, count_characters(bytes) - 1))))
    if (!bytes.ends_with('\r')) all.emplace_back();
  TextBuilder out(run);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i > 0) out.add("\n");
    if (i == 0 ? p.flag(1) : p.flag(2) || !all[i].empty()) out.add(indention);
    out.add(all[i]);
  }
  return out.finish();
}

Value filter_format(Run& run, const Value& v, const Arguments& a) {
  if (!a.positional.empty() && !a.named.empty()) run.error("format: values by place and by name at the same time");
  if (a.named.empty()) return percent_format(run, to_text(run, v), make_list(run, a.positional, List::Kind::kTuple));
  std::vector<std::pair<Value, Value>> items;
  for (const auto& [key, value] : a.named) put(run, items, make_text(key), value);
  return percent_format(run, to_text(run, v), make_dict(run, std::move(items)));
}

Value filter_tojson(Run& run, const Value& v, const Arguments& a) {
  const Parameters p(run, "tojson", a, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style{.ascii = p.flag(0), .sort_keys = p.flag(3)};
  if (const Value* indent = p.something(1)) {
    style.lines = true;
    style.between = ",";
    if (indent->text() != nullptr) {
      style.indent = std::string(indent->text()->view());
    } else {
      const std::int64_t width = expect_integer(run, *indent, "indent");
      if (width > 1000) run.error("tojson: an indent of more than 1000");
      style.indent = std::string(std::max<std::int64_t>(width, 0), ' ');
    }
  }
  if (const Value* separators = p.something(2)) {
    const auto two = to_list(run, *separators);
    if (two->items.size() != 2) run.error("tojson: expected two separators, found {}", two->items.size());
    style.between = std::string(expect_text(run, two->items[0], "separators").view());
    style.after_key = std::string(expect_text(run, two->items[1], "separators").view());
  }
  TextBuilder out(run);
  print_json(run, v, style, out);
  return out.finish();
}

// Digits with single underscores between them, as in Python's numbers; nothing where they are misplaced.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](std::size_t at) { return at < text.size() && is_hex_digit(text[at]); };
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || !digit(i - 1) || !digit(i + 1)) {
      return std::nullopt;
    }
  }
  return out;
}

std::optional<double> real_of(Run& run, const Value& v) {
  if (v.is_number()) return v.as_real();
  if (v.text() == nullptr) return std::nullopt;
  const Text stripped = strip(run, *v.text(), nullptr, true, true);
  auto digits = without_underscores(stripped.view());
  if (!digits || digits->empty()) return std::nullopt;
  std::string_view text = *digits;
  if (text[0] == '+') text.remove_prefix(1);
  if (text.empty() || text[0] == '+' || text.starts_with("-nan(") || text.starts_with("nan(")) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) return text[0] == '-' ? -HUGE_VAL : HUGE_VAL;
  if (error != std::errc()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> integer_of(Run& run, const Text& text, int base) {
  const Text stripped = strip(run, text, nullptr, true, true);
  auto digits = without_underscores(stripped.view());
  if (!digits) return std::nullopt;
  std::string_view rest = *digits;
  const bool minus = rest.starts_with('-');
  if (minus || rest.starts_with('+')) rest.remove_prefix(1);
  const std::string_view prefix = base == 16 ? "xX" : base == 8 ? "oO" : base == 2 ? "bB" : "";
  if (rest.size() > 2 && rest[0] == '0' && prefix.find(rest[1]) != std::string_view::npos) rest.remove_prefix(2);
  if (rest.empty() || rest[0] == '-') return std::nullopt;
  std::int64_t value = 0;
  const std::string signed_digits = (minus ? "-" : "") + std::string(rest);
  const auto [end, error] =
      std::from_chars(signed_digits.data(), signed_digits.data() + signed_digits.size(), value, base);
  if (end != signed_digits.data() + signed_digits.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) run.error("int: an integer does not fit 64 bits");
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

Value filter_int(Run& run, const Value& v, const Arguments& a) {
  const Parameters p(run, "int", a, {"default", "base"});
  if (v.is_integer()) return v.as_integer();
  if (v.undefined() != nullptr) run.error("{}", *v.undefined()->why);
  const std::int64_t base = p.has(1) ? expect_integer(run, p.at(1), "base") : 10;
  if (base < 2 || base > 36) run.error("int: base {}", base);
  if (v.text() != nullptr)
    if (const auto i = integer_of(run, *v.text(), static_cast<int>(base))) return *i;
  const auto d = real_of(run, v);
  if (!d || !(std::abs(*d) < 9.2e18)) return p.or_else(0, std::int64_t{0});
  return static_cast<std::int64_t>(*d);
}

Value filter_float(Run& run, const Value& v, const Arguments& a) {
  const Parameters p(run, "float", a, {"default"});
  if (v.undefined() != nullptr) run.error("{}", *v.undefined()->why);
  const auto d = real_of(run, v);
  return d ? Value(*d) : p.or_else(0, 0.0);
}

Value filter_round(Run& run, const Value& v, const Arguments& a) {
  const Parameters p(run, "round", a, {"precision", "method"});
  const std::int64_t precision = p.has(0) ? expect_integer(run, p.at(0), "precision") : 0;
  const std::string_view how = p.has(1) ? expect_text(run, p.at(1), "method").view() : "common";
  if (!v.is_number()) run.error("round: '{}' is no number", v.type_name());
  if (precision < 0 || precision > 300) run.error("round: a precision of {}", precision);
  if (how == "common") {
    if (v.is_integer()) return v.as_integer();
    const std::string digits = fmt::format("{:.{}f}", *v.real(), precision);
    return real_of(run, make_text(digits)).value_or(*v.real());
  }
  if (how != "ceil" && how != "floor") run.error("round: method must be common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double x = v.as_real() * scale;
  return (how == "ceil" ? std::ceil(x) : std::floor(x)) / scale;
}

Value filter_abs(Run& run, const Value& v, const Arguments& a) {
  expect_no_arguments(run, "abs", a);
  if (v.real() != nullptr) return std::abs(*v.real());
  if (v.is_integer()) return v.as_integer() < 0 ? negative(run, v.as_integer()) : v.as_integer();
  run.error("abs: '{}' is no number", v.type_name());
}

Value filter_case(Run& run, std::string_view name, const Value& v, const Arguments& a) {
  expect_no_arguments(run, name, a);
  const Text text = to_text(run, v);
  return name == "upper" ? upper(run, text) : name == "lower" ? lower(run, text) : capitalize(run, text);
}

using Filter = Value (*)(Run&, const Value&, const Arguments&);

constexpr std::array<std::pair<std::string_view, Filter>, 37> kFilters = {{
    {"abs", filter_abs},
    {"capitalize", [](Run& r, const Value& v, const Arguments& a) { return filter_case(r, "capitalize", v, a); }},
    {"center",
     [](Run& r, const Value& v, const Arguments& a) {
       Arguments with = a;
       if (with.positional.empty() && with.named.empty()) with.positional.emplace_back(std::int64_t{80});
       return call_text_method(r, to_text(r, v), "center", with);
     }},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"dictsort", filter_dictsort},
    {"first", filter_first},
    {"float", filter_float},
    {"format", filter_format},
    {"indent", filter_indent},
    {"int", filter_int},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"lower", [](Run& r, const Value& v, const Arguments& a) { return filter_case(r, "lower", v, a); }},
    {"map", filter_map},
    {"max", filter_max},
    {"min", filter_min},
    {"reject", [](Run& r, const Value& v, const Arguments& a) { return filter_select(r, v, a, false, false); }},
    {"rejectattr", [](Run& r, const Value& v, const Arguments& a) { return filter_select(r, v, a, true, false); }},
    {"replace", filter_replace},
    {"reverse", filter_reverse},
    {"round", filter_round},
    {"safe", filter_string},
    {"select", [](Run& r, const Value& v, const Arguments& a) { return filter_select(r, v, a, false, true); }},
    {"selectattr", [](Run& r, const Value& v, const Arguments& a) { return filter_select(r, v, a, true, true); }},
    {"sort", filter_sort},
    {"string", filter_string},
    {"sum", filter_sum},
    {"title", filter_title},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"unique", filter_unique},
    {"upper", [](Run& r, const Value& v, const Arguments& a) { return filter_case(r, "upper", v, a); }},
}};

Filter find_filter(std::string_view name) {
  for (const auto& [n, f] : kFilters)
    if (n == name) return f;
  return nullptr;
}

}  // namespace

bool is_filter(std::string_view name) {
  return find_filter(name) != nullptr;
}

Value apply_filter(Run& run, std::string_view name, const Value& value, const Arguments& arguments) {
  const Filter filter = find_filter(name);
  if (filter == nullptr) run.error("no filter '{}'", name);
  run.spend_work(1);
  return filter(run, value, arguments);
}

}  // namespace mneme::jinja
