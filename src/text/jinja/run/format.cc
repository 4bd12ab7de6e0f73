#include "src/text/jinja/run/format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "src/base/ascii.h"
#include "src/text/jinja/run/ops.h"
#include "src/text/jinja/value/print.h"

namespace mneme::jinja {
namespace {

constexpr int kWidest = 10'000;

struct Conversion {
  bool left = false, zero = false, plus = false, space = false;
  int width = 0, precision = -1;
  std::optional<std::string_view> key;
  char type = 's';
};

class Reader {
 public:
  Reader(Run& run, std::string_view text) : run_(run), text_(text) {}
  bool done() const { return at_ >= text_.size(); }
  std::size_t at() const { return at_; }
  char peek() const { return done() ? '\0' : text_[at_]; }
  bool skip(char c) {
    const bool found = !done() && text_[at_] == c;
    at_ += found ? 1 : 0;
    return found;
  }
  // Text up to `c`; consumes `c`.
  std::string_view until(char c) {
    const std::size_t end = text_.find(c, at_);
    if (end == std::string_view::npos) run_.error("format: '{}' is missing", c);
    const std::string_view part = text_.substr(at_, end - at_);
    at_ = end + 1;
    return part;
  }
  int number() {
    int n = 0;
    for (; is_digit(peek()); ++at_)
      if ((n = n * 10 + (peek() - '0')) > kWidest) run_.error("format: wider than {}", kWidest);
    return n;
  }
  char take() {
    if (done()) run_.error("format: it ends within a field");
    return text_[at_++];
  }

 private:
  Run& run_;
  std::string_view text_;
  std::size_t at_ = 0;
};

Conversion read_conversion(Reader& in) {
  Conversion c;
  if (in.skip('(')) c.key = in.until(')');
  for (bool more = true; more;) {
    if (in.skip('-')) {
      c.left = true;
    } else if (in.skip('0')) {
      c.zero = true;
    } else if (in.skip('+')) {
      c.plus = true;
    } else if (in.skip(' ')) {
      c.space = true;
    } else {
      more = false;
    }
  }
  c.width = in.number();
  if (in.skip('.')) c.precision = in.number();
  c.type = in.take();
  return c;
}

// Formatted as by C, which Python matches.
std::string number_text(Run& run, const Conversion& c, const Value& v) {
  if (!v.is_number()) run.error("format: %{} needs a number, not '{}'", c.type, v.type_name());
  std::string spec = "%";
  if (c.plus) spec += '+';
  if (c.space) spec += ' ';
  if (c.zero && !c.left) spec += "0" + std::to_string(c.width);
  if (c.precision >= 0) spec += "." + std::to_string(c.precision);
  std::string out(c.width + std::max(c.precision, 0) + 400, '\0');
  int n = 0;
  const bool real = std::string_view("fFeEgG").find(c.type) != std::string_view::npos;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  if (real) {
    n = std::snprintf(out.data(), out.size(), (spec + c.type).c_str(), v.as_real());
  } else {
    if (!v.is_integer() && c.type != 'd' && c.type != 'i') run.error("format: %{} needs an integer", c.type);
    if (v.real() != nullptr && !(std::abs(*v.real()) < 9e18)) run.error("format: %{} of {}", c.type, *v.real());
    long long whole = v.is_integer() ? v.as_integer() : static_cast<long long>(*v.real());
    const bool minus = whole < 0 && c.type != 'd' && c.type != 'i';
    if (minus) whole = -whole;
    n = std::snprintf(out.data(), out.size(), ((minus ? "-" + spec : spec) + "ll" + c.type).c_str(), whole);
  }
#pragma GCC diagnostic pop
  out.resize(std::max(n, 0));
  return out;
}

Text converted(Run& run, const Conversion& c, const Value& v) {
  if (c.type != 's' && c.type != 'r') {
    if (std::string_view("dixXofFeEgG").find(c.type) == std::string_view::npos)
      run.error("format: %{} is not supported", c.type);
    return Text(number_text(run, c, v));
  }
  TextBuilder out(run);
  c.type == 's' ? print(run, v, out) : print_repr(run, v, out);
  Text text = out.finish();
  if (c.precision < 0) return text;
  return slice(run, text, 0, byte_of_character(text.view(), c.precision));
}

void add_padded(const Conversion& c, const Text& text, TextBuilder& out) {
  const std::size_t n = count_characters(text.view()), width = c.width;
  const std::string blanks(width > n ? width - n : 0, ' ');
  if (!c.left) out.add(blanks);
  out.add(text);
  if (c.left) out.add(blanks);
}

}  // namespace

Value percent_format(Run& run, const Text& format, const Value& values) {
  const bool tuple = values.list() != nullptr && values.list()->kind == List::Kind::kTuple;
  const std::size_t given = tuple ? values.list()->items.size() : 1;
  std::size_t used = 0;
  TextBuilder out(run);
  Reader in(run, format.view());
  bool keyed = false;
  while (!in.done()) {
    const std::size_t from = in.at();
    while (!in.done() && in.peek() != '%') in.take();
    out.add(format, from, in.at());
    if (!in.skip('%')) break;
    const Conversion c = read_conversion(in);
    if (c.type == '%') {
      out.add("%");
    } else if (c.key) {
      if (values.dict() == nullptr) run.error("format: %({}) needs a mapping", *c.key);
      const Value* v = values.dict()->find(*c.key);
      if (v == nullptr) run.error("format: no value '{}'", *c.key);
      add_padded(c, converted(run, c, *v), out);
      keyed = true;
    } else {
      if (used >= given) run.error("format: not enough values");
      add_padded(c, converted(run, c, tuple ? values.list()->items[used] : values), out);
      ++used;
    }
  }
  if (used < given && !keyed && (tuple || values.dict() == nullptr)) run.error("format: too many values");
  return out.finish();
}

Value brace_format(Run& run, const Text& format, const Arguments& values) {
  TextBuilder out(run);
  Reader in(run, format.view());
  std::size_t next = 0;
  while (!in.done()) {
    const std::size_t from = in.at();
    while (!in.done() && in.peek() != '{' && in.peek() != '}') in.take();
    out.add(format, from, in.at());
    if (in.done()) break;
    const char brace = in.take();
    if (in.skip(brace)) {
      out.add(std::string_view(&brace, 1));
      continue;
    }
    if (brace == '}') run.error("format: a single '}}'");
    std::string_view field = in.until('}');
    const bool repr = field.ends_with("!r");
    if (repr || field.ends_with("!s")) field.remove_suffix(2);
    if (field.find_first_of(".[:!{") != std::string_view::npos) run.error("format: '{}' is not supported", field);
    const Value* v = nullptr;
    if (field.empty() || std::all_of(field.begin(), field.end(), is_digit)) {
      if (field.size() > 6) run.error("format: no value {}", field);
      const std::size_t index = field.empty() ? next++ : std::stoul(std::string(field));
      if (index < values.positional.size()) v = &values.positional[index];
    } else {
      v = values.named_value(field);
    }
    if (v == nullptr) run.error("format: no value for '{{{}}}'", field);
    repr ? print_repr(run, *v, out) : print(run, *v, out);
  }
  return out.finish();
}

}  // namespace mneme::jinja
