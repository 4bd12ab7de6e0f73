#include <algorithm>
#include <cmath>

#include "src/text/jinja/run/format.h"
#include "src/text/jinja/run/ops.h"

namespace mneme::jinja {
namespace {

[[noreturn]] void too_large(Run& run) {
  run.error("an integer does not fit 64 bits");
}

[[noreturn]] void no_operation(Run& run, std::string_view op, const Value& a, const Value& b) {
  for (const Value* v : {&a, &b})
    if (v->undefined() != nullptr) run.error("{}", *v->undefined()->why);
  run.error("'{}' does not work between '{}' and '{}'", op, a.type_name(), b.type_name());
}

std::string_view written(char op) {
  return op == 'd' ? "//" : op == 'p' ? "**" : op == '-' ? "-" : op == '*' ? "*" : op == '/' ? "/" : "%";
}

// Python floors quotients, and remainders have the sign of the divisor.
std::int64_t floor_divide(Run& run, std::int64_t a, std::int64_t b) {
  if (b == -1) {
    std::int64_t r = 0;
    if (__builtin_sub_overflow(std::int64_t{0}, a, &r)) too_large(run);
    return r;
  }
  const std::int64_t q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

std::int64_t modulo(std::int64_t a, std::int64_t b) {
  if (b == -1) return 0;
  const std::int64_t r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

std::int64_t power(Run& run, std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  for (; exponent > 0; --exponent)
    if (__builtin_mul_overflow(result, base, &result)) too_large(run);
  return result;
}

Value integers(Run& run, char op, std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  switch (op) {
    case '+':
      if (__builtin_add_overflow(a, b, &r)) too_large(run);
      return r;
    case '-':
      if (__builtin_sub_overflow(a, b, &r)) too_large(run);
      return r;
    case '*':
      if (__builtin_mul_overflow(a, b, &r)) too_large(run);
      return r;
    case '/':
      return static_cast<double>(a) / static_cast<double>(b);
    case 'd':
      return floor_divide(run, a, b);
    case '%':
      return modulo(a, b);
    default:
      if (b >= 0) return power(run, a, b);
      return std::pow(static_cast<double>(a), static_cast<double>(b));
  }
}

double reals(char op, double a, double b) {
  switch (op) {
    case '+':
      return a + b;
    case '-':
      return a - b;
    case '*':
      return a * b;
    case '/':
      return a / b;
    case 'p':
      return std::pow(a, b);
    default: {
      double r = std::fmod(a, b);
      if (r != 0 && (r < 0) != (b < 0)) r += b;
      if (op == '%') return r == 0 ? std::copysign(0.0, b) : r;
      double quotient = (a - r) / b;
      if (quotient == 0) return std::copysign(0.0, a / b);
      const double down = std::floor(quotient);
      return quotient - down > 0.5 ? down + 1 : down;
    }
  }
}

Value numbers(Run& run, char op, const Value& a, const Value& b) {
  const bool divides = op == '/' || op == 'd' || op == '%';
  if (divides && b.as_real() == 0) run.error("division by zero");
  if (op == 'p' && a.as_real() == 0 && b.as_real() < 0) run.error("0 cannot be raised to a negative power");
  if (a.is_integer() && b.is_integer()) return integers(run, op, a.as_integer(), b.as_integer());
  if (op == 'p' && a.as_real() < 0 && b.as_real() != std::floor(b.as_real()))
    run.error("a negative number raised to a fraction");
  return reals(op, a.as_real(), b.as_real());
}

Value repeated(Run& run, const Value& v, std::int64_t times) {
  if (const Text* text = v.text()) {
    TextBuilder out(run);
    if (text->empty()) return *text;
    for (; times > 0; --times) out.add(*text);
    return out.finish();
  }
  std::vector<Value> items;
  const auto& from = v.list()->items;
  if (from.empty()) times = 0;
  for (; times > 0; --times) {
    run.spend_memory(from.size() * sizeof(Value));
    items.insert(items.end(), from.begin(), from.end());
  }
  return make_list(run, std::move(items), v.list()->kind);
}

bool is_repeatable(const Value& v) {
  if (v.text() != nullptr) return true;
  return v.list() != nullptr && (v.list()->kind == List::Kind::kList || v.list()->kind == List::Kind::kTuple);
}

}  // namespace

Value add(Run& run, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return numbers(run, '+', a, b);
  if (a.text() != nullptr && b.text() != nullptr) {
    TextBuilder out(run);
    out.add(*a.text());
    out.add(*b.text());
    return out.finish();
  }
  if (a.list() != nullptr && b.list() != nullptr && a.list()->kind == b.list()->kind && is_repeatable(a)) {
    run.spend_memory((a.list()->items.size() + b.list()->items.size()) * sizeof(Value));
    std::vector<Value> items = a.list()->items;
    items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
    return make_list(run, std::move(items), a.list()->kind);
  }
  no_operation(run, "+", a, b);
}

Value arithmetic(Run& run, char op, const Value& a, const Value& b) {
  if (op == '%' && a.text() != nullptr) return percent_format(run, *a.text(), b);
  if (a.is_number() && b.is_number()) return numbers(run, op, a, b);
  if (op == '*' && is_repeatable(a) && b.is_integer()) return repeated(run, a, b.as_integer());
  if (op == '*' && is_repeatable(b) && a.is_integer()) return repeated(run, b, a.as_integer());
  no_operation(run, written(op), a, b);
}

Value negative(Run& run, const Value& a) {
  if (a.real() != nullptr) return -*a.real();
  if (a.is_integer()) return integers(run, '-', 0, a.as_integer());
  no_operation(run, "-", a, a);
}

}  // namespace mneme::jinja
