#include <algorithm>
#include <array>
#include <limits>

#include "src/base/underlying.h"
#include "src/text/jinja/run/format.h"
#include "src/text/jinja/run/method.h"
#include "src/text/jinja/run/ops.h"
#include "src/text/unicode/unicode_case.h"

namespace mneme::jinja {
namespace {

constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
using unicode::Case;

std::size_t last_character(std::string_view text) {
  std::size_t at = text.size();
  do --at;
  while (at > 0 && (text[at] & 0xC0) == 0x80);
  return at;
}

std::int64_t count_of(Run& run, const Parameters& p, std::size_t i) {
  if (!p.has(i)) return kAll;
  const std::int64_t n = expect_integer(run, p.at(i), "count");
  return n < 0 ? kAll : n;
}

struct Range {
  std::size_t begin, end;
};

Value list_of(Run& run, const Text& text, const std::vector<Range>& parts) {
  std::vector<Value> items;
  for (const Range& r : parts) items.emplace_back(slice(run, text, r.begin, r.end));
  return make_list(run, std::move(items));
}

// Splits from the left at `separator`, at most `most` times.
std::vector<Range> cut_at(std::string_view text, std::string_view separator, std::int64_t most) {
  std::vector<Range> parts;
  std::size_t from = 0;
  for (std::size_t at; most > 0 && (at = text.find(separator, from)) != std::string_view::npos; --most) {
    parts.push_back({from, at});
    from = at + separator.size();
  }
  parts.push_back({from, text.size()});
  return parts;
}

std::vector<Range> cut_at_from_right(std::string_view text, std::string_view separator, std::int64_t most) {
  std::vector<Range> parts;
  std::size_t end = text.size();
  while (most-- > 0 && end >= separator.size()) {
    const std::size_t at = text.rfind(separator, end - separator.size());
    if (at == std::string_view::npos) break;
    parts.push_back({at + separator.size(), end});
    end = at;
  }
  parts.push_back({0, end});
  std::reverse(parts.begin(), parts.end());
  return parts;
}

// Splits at white space; after `most` words the rest is kept, trailing white space included.
std::vector<Range> words(std::string_view text, std::int64_t most) {
  std::vector<Range> parts;
  std::size_t at = 0;
  const auto skip = [&](bool space) {
    while (at < text.size() && unicode::is_space(character_at(text, at)) == space)
      at += character_length(text.substr(at));
  };
  for (skip(true); at < text.size(); skip(true)) {
    if (most-- == 0) {
      parts.push_back({at, text.size()});
      break;
    }
    const std::size_t from = at;
    skip(false);
    parts.push_back({from, at});
  }
  return parts;
}

std::vector<Range> words_from_right(std::string_view text, std::int64_t most) {
  std::vector<Range> parts;
  std::size_t end = text.size();
  const auto skip = [&](bool space) {
    while (end > 0) {
      const std::size_t at = last_character(text.substr(0, end));
      if (unicode::is_space(character_at(text, at)) != space) break;
      end = at;
    }
  };
  for (skip(true); end > 0; skip(true)) {
    if (most-- == 0) {
      parts.push_back({0, end});
      break;
    }
    const std::size_t to = end;
    skip(false);
    parts.push_back({end, to});
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Value split(Run& run, const Text& self, const Arguments& arguments, bool right) {
  const Parameters p(run, "split", arguments, {"sep", "maxsplit"});
  const std::int64_t most = count_of(run, p, 1);
  run.spend_work(self.size() / 8);
  run.spend_memory(self.size());
  if (p.something(0) == nullptr) {
    return list_of(run, self, right ? words_from_right(self.view(), most) : words(self.view(), most));
  }
  const Text& separator = expect_text(run, p.at(0), "separator");
  if (separator.empty()) run.error("split: the separator is empty");
  return list_of(
      run, self,
      right ? cut_at_from_right(self.view(), separator.view(), most) : cut_at(self.view(), separator.view(), most));
}

Value partition(Run& run, const Text& self, const Arguments& arguments, bool right) {
  const Text separator = expect_text(run, Parameters(run, "partition", arguments, {"sep"}).at(0), "separator");
  if (separator.empty()) run.error("partition: the separator is empty");
  const std::size_t at = right ? self.view().rfind(separator.view()) : self.view().find(separator.view());
  std::vector<Value> parts;
  if (at == std::string_view::npos) {
    parts = {self, Text(), Text()};
    if (right) std::swap(parts[0], parts[2]);
  } else {
    parts = {slice(run, self, 0, at), slice(run, self, at, at + separator.size()),
             slice(run, self, at + separator.size(), self.size())};
  }
  return make_list(run, std::move(parts), List::Kind::kTuple);
}

// Substring range of find, count and startswith. `inside` is false where it starts after its end.
struct Part {
  std::size_t begin = 0, end = 0;
  bool inside = true;
};

Part part_of(Run& run, const Text& self, const Parameters& p) {
  if (p.something(1) == nullptr && p.something(2) == nullptr) return {0, self.size(), true};
  const std::int64_t n = length(run, self);
  const auto bound = [&](std::size_t i, std::int64_t otherwise) {
    if (p.something(i) == nullptr) return otherwise;
    const std::int64_t at = expect_integer(run, p.at(i), "position");
    return at < 0 ? std::max<std::int64_t>(at + n, 0) : at;
  };
  const std::int64_t begin = bound(1, 0), end = std::min(bound(2, n), n);
  if (begin > end) return {0, 0, false};
  return {byte_of_character(self.view(), begin), byte_of_character(self.view(), end), true};
}

Value begins_or_ends(Run& run, const Text& self, const Arguments& arguments, bool begins) {
  const Parameters p(run, begins ? "startswith" : "endswith", arguments, {"prefix", "start", "end"});
  const Part part = part_of(run, self, p);
  const std::string_view text = self.view().substr(part.begin, part.end - part.begin);
  const auto fits = [&](const Value& v) {
    const std::string_view x = expect_text(run, v, "startswith").view();
    return part.inside && (begins ? text.starts_with(x) : text.ends_with(x));
  };
  const Value& wanted = p.at(0);
  if (wanted.list() == nullptr || wanted.list()->kind != List::Kind::kTuple) return fits(wanted);
  return std::any_of(wanted.list()->items.begin(), wanted.list()->items.end(), fits);
}

Value find(Run& run, const Text& self, std::string_view name, const Arguments& arguments) {
  const Parameters p(run, name, arguments, {"sub", "start", "end"});
  const Part part = part_of(run, self, p);
  const std::string_view text = self.view().substr(part.begin, part.end - part.begin);
  const std::string_view wanted = expect_text(run, p.at(0), name).view();
  run.spend_work(text.size() / 16);
  if (name == "count") {
    std::size_t n = 0, at = 0;
    if (!part.inside) return std::int64_t{0};
    if (wanted.empty()) return Value::size(count_characters(text) + 1);
    for (; (at = text.find(wanted, at)) != std::string_view::npos; at += wanted.size()) ++n;
    return Value::size(n);
  }
  const bool right = name[0] == 'r';
  const std::size_t at = !part.inside ? std::string_view::npos : right ? text.rfind(wanted) : text.find(wanted);
  if (at != std::string_view::npos) return Value::size(count_characters(self.view().substr(0, part.begin + at)));
  if (name.ends_with("index")) run.error("{}: substring not found", name);
  return std::int64_t{-1};
}

Text title(Run& run, const Text& text) {
  TextBuilder out(run);
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t n = character_length(text.view().substr(at));
    add_case(run, text, at, at + n, underlying(inside ? Case::kLower : Case::kTitle), out);
    inside = unicode::is_cased(character_at(text.view(), at));
    at += n;
  }
  return out.finish();
}

Text swap_case(Run& run, const Text& text) {
  TextBuilder out(run);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t n = character_length(text.view().substr(at));
    const char32_t c = character_at(text.view(), at);
    const bool is_lower = unicode::convert(c, Case::kUpper) != std::u32string{c};
    add_case(run, text, at, at + n, underlying(is_lower ? Case::kUpper : Case::kLower), out);
    at += n;
  }
  return out.finish();
}

Text padded(Run& run, const Text& self, std::string_view name, const Arguments& arguments) {
  const Parameters p(run, name, arguments, {"width", "fillchar"});
  const Text fill = p.has(1) ? expect_text(run, p.at(1), name) : Text(name == "zfill" ? "0" : " ");
  if (count_characters(fill.view()) != 1) run.error("{}: the fill is one character", name);
  const std::int64_t wanted = expect_integer(run, p.at(0), name);
  const std::int64_t n = length(run, self);
  const std::int64_t missing = std::max<std::int64_t>(wanted - n, 0);
  std::int64_t left = name == "rjust" || name == "zfill" ? missing : 0;
  if (name == "center") left = missing / 2 + (missing & wanted & 1);
  TextBuilder out(run);
  const bool sign = name == "zfill" && !self.empty() && (self.view()[0] == '-' || self.view()[0] == '+');
  if (sign) out.add(self, 0, 1);
  for (std::int64_t i = 0; i < left; ++i) out.add(fill);
  out.add(self, sign ? 1 : 0, self.size());
  for (std::int64_t i = left; i < missing; ++i) out.add(fill);
  return out.finish();
}

Value is_of(Run& run, const Text& self, std::string_view name) {
  const std::string_view text = self.view();
  run.spend_work(text.size() / 4);
  bool some = false, all = !text.empty();
  for (std::size_t at = 0; at < text.size(); at += character_length(text.substr(at))) {
    const char32_t c = character_at(text, at);
    const bool digit = c >= '0' && c <= '9', letter = c < 0x80 && unicode::is_cased(c);
    if (name == "isspace") {
      all = all && unicode::is_space(c);
    } else if (name == "isupper" || name == "islower") {
      const std::u32string same{c};
      const bool is_lower = unicode::convert(c, Case::kUpper) != same;
      const bool is_upper = !is_lower && unicode::convert(c, Case::kLower) != same;
      some = some || (name == "isupper" ? is_upper : is_lower);
      all = all && !(name == "isupper" ? is_lower : is_upper);
    } else {
      if (c >= 0x80) run.error("{}: characters beyond ASCII are not supported", name);
      const bool digits = name != "isalpha", letters = name == "isalpha" || name == "isalnum";
      all = all && ((digits && digit) || (letters && letter));
    }
  }
  return name == "isupper" || name == "islower" ? all && some : all;
}

constexpr std::array<std::string_view, 39> kMethods = {
    "capitalize", "center",    "count",      "endswith",  "find",         "format",       "index",      "isalnum",
    "isalpha",    "isdecimal", "isdigit",    "islower",   "isnumeric",    "isspace",      "isupper",    "join",
    "ljust",      "lower",     "lstrip",     "partition", "removeprefix", "removesuffix", "replace",    "rfind",
    "rindex",     "rjust",     "rpartition", "rsplit",    "rstrip",       "split",        "splitlines", "startswith",
    "strip",      "swapcase",  "title",      "upper",     "zfill",        "casefold",     "isascii"};

Text without(Run& run, const Text& self, std::string_view name, const Arguments& arguments) {
  const std::string_view part = expect_text(run, Parameters(run, name, arguments, {"part"}).at(0), name).view();
  const bool prefix = name == "removeprefix";
  if (!(prefix ? self.view().starts_with(part) : self.view().ends_with(part))) return self;
  return prefix ? slice(run, self, part.size(), self.size()) : slice(run, self, 0, self.size() - part.size());
}

}  // namespace

bool is_text_method(std::string_view name) {
  return std::find(kMethods.begin(), kMethods.end(), name) != kMethods.end();
}

Value call_text_method(Run& run, const Text& self, std::string_view name, const Arguments& arguments) {
  const auto none = [&] { Parameters(run, name, arguments, {}); };
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Parameters p(run, name, arguments, {"chars"});
    return strip(run, self, p.something(0), name != "rstrip", name != "lstrip");
  }
  if (name == "split" || name == "rsplit") return split(run, self, arguments, name == "rsplit");
  if (name == "partition" || name == "rpartition") return partition(run, self, arguments, name == "rpartition");
  if (name == "startswith" || name == "endswith") return begins_or_ends(run, self, arguments, name == "startswith");
  if (name == "replace") {
    const Parameters p(run, name, arguments, {"old", "new", "count"});
    return replace(run, self, expect_text(run, p.at(0), name), expect_text(run, p.at(1), name), count_of(run, p, 2));
  }
  if (name == "join") {
    std::vector<Text> parts;
    for_each(run, Parameters(run, name, arguments, {"iterable"}).at(0),
             [&](const Value& v) { parts.push_back(expect_text(run, v, name)); });
    return join(run, self, parts);
  }
  if (name == "format") return brace_format(run, self, arguments);
  if (name == "splitlines") {
    const Parameters p(run, name, arguments, {"keepends"});
    return split_lines(run, self, p.flag(0));
  }
  if (name == "count" || name == "find" || name == "rfind" || name == "index" || name == "rindex")
    return find(run, self, name, arguments);
  if (name == "center" || name == "ljust" || name == "rjust" || name == "zfill")
    return padded(run, self, name, arguments);
  if (name == "removeprefix" || name == "removesuffix") return without(run, self, name, arguments);
  none();
  if (name == "upper") return upper(run, self);
  if (name == "lower") return lower(run, self);
  if (name == "capitalize") return capitalize(run, self);
  if (name == "title") return title(run, self);
  if (name == "swapcase") return swap_case(run, self);
  if (name == "isascii") return std::all_of(self.view().begin(), self.view().end(), [](char c) { return c >= 0; });
  if (name.starts_with("is")) return is_of(run, self, name);
  run.error("str.{} is not supported", name);
}

}  // namespace mneme::jinja
