// Tests: names after `is`, and in select().
#include <array>

#include "src/text/jinja/run/call.h"
#include "src/text/jinja/run/method.h"
#include "src/text/jinja/run/ops.h"
#include "src/text/jinja/value/print.h"

namespace mneme::jinja {
namespace {

bool remainder_is(Run& run, const Value& v, const Value& by, std::int64_t wanted) {
  return equal(run, arithmetic(run, '%', v, by), wanted);
}

bool is_sequence(const Value& v) {
  const bool list = v.list() != nullptr && v.list()->is_sequence();
  return list || v.text() != nullptr || v.dict() != nullptr || v.undefined() != nullptr;
}

using Unary = bool (*)(Run&, const Value&);
constexpr std::array<std::pair<std::string_view, Unary>, 21> kUnary = {{
    {"boolean", [](Run&, const Value& v) { return v.boolean() != nullptr; }},
    {"callable", [](Run&, const Value& v) { return v.callable() != nullptr || v.undefined() != nullptr; }},
    {"defined", [](Run&, const Value& v) { return v.undefined() == nullptr; }},
    {"escaped", [](Run&, const Value&) { return false; }},
    {"even", [](Run& run, const Value& v) { return remainder_is(run, v, std::int64_t{2}, 0); }},
    {"false", [](Run&, const Value& v) { return v.boolean() != nullptr && !*v.boolean(); }},
    {"filter", [](Run&, const Value& v) { return v.text() != nullptr && is_filter(v.text()->view()); }},
    {"float", [](Run&, const Value& v) { return v.real() != nullptr; }},
    {"integer", [](Run&, const Value& v) { return v.integer() != nullptr; }},
    {"iterable", [](Run&, const Value& v) { return is_iterable(v); }},
    {"lower", [](Run& run, const Value& v) { return truth(call_text_method(run, to_text(run, v), "islower", {})); }},
    {"mapping", [](Run&, const Value& v) { return v.dict() != nullptr; }},
    {"none", [](Run&, const Value& v) { return v.is_none(); }},
    {"number", [](Run&, const Value& v) { return v.is_number(); }},
    {"odd", [](Run& run, const Value& v) { return remainder_is(run, v, std::int64_t{2}, 1); }},
    {"sequence", [](Run&, const Value& v) { return is_sequence(v); }},
    {"string", [](Run&, const Value& v) { return v.text() != nullptr; }},
    {"test", [](Run&, const Value& v) { return v.text() != nullptr && is_test(v.text()->view()); }},
    {"true", [](Run&, const Value& v) { return v.boolean() != nullptr && *v.boolean(); }},
    {"undefined", [](Run&, const Value& v) { return v.undefined() != nullptr; }},
    {"upper", [](Run& run, const Value& v) { return truth(call_text_method(run, to_text(run, v), "isupper", {})); }},
}};

using Binary = bool (*)(Run&, const Value&, const Value&);
bool at_most(Run& run, const Value& a, const Value& b) {
  return less(run, a, b) || equal(run, a, b);
}
constexpr Binary kEqual = equal;
constexpr Binary kUnequal = [](Run& run, const Value& a, const Value& b) { return !equal(run, a, b); };
constexpr Binary kLess = less;
constexpr Binary kGreater = [](Run& run, const Value& a, const Value& b) { return less(run, b, a); };
constexpr Binary kAtMost = at_most;
constexpr Binary kAtLeast = [](Run& run, const Value& a, const Value& b) { return at_most(run, b, a); };

constexpr std::array<std::pair<std::string_view, Binary>, 18> kBinary = {{
    {"==", kEqual},
    {"eq", kEqual},
    {"equalto", kEqual},
    {"!=", kUnequal},
    {"ne", kUnequal},
    {"<", kLess},
    {"lt", kLess},
    {"lessthan", kLess},
    {">", kGreater},
    {"gt", kGreater},
    {"greaterthan", kGreater},
    {"<=", kAtMost},
    {"le", kAtMost},
    {">=", kAtLeast},
    {"ge", kAtLeast},
    {"in", [](Run& run, const Value& a, const Value& b) { return contains(run, b, a); }},
    {"sameas", [](Run&, const Value& a, const Value& b) { return a.same_as(b); }},
    {"divisibleby", [](Run& run, const Value& a, const Value& b) { return remainder_is(run, a, b, 0); }},
}};

template <typename Table>
auto find_in(const Table& table, std::string_view name) -> decltype(table[0].second) {
  for (const auto& [n, f] : table)
    if (n == name) return f;
  return nullptr;
}

}  // namespace

bool is_test(std::string_view name) {
  return find_in(kUnary, name) != nullptr || find_in(kBinary, name) != nullptr;
}

bool apply_test(Run& run, std::string_view name, const Value& value, const Arguments& arguments) {
  run.spend_work(1);
  if (const Unary unary = find_in(kUnary, name)) {
    expect_no_arguments(run, name, arguments);
    return unary(run, value);
  }
  const Binary binary = find_in(kBinary, name);
  if (binary == nullptr) run.error("no test '{}'", name);
  return binary(run, value, Parameters(run, name, arguments, {"other"}).at(0));
}

}  // namespace mneme::jinja
