#include "src/text/jinja/run/call.h"

#include <algorithm>
#include <array>
#include <ctime>

#include "src/text/jinja/run/ops.h"
#include "src/text/jinja/value/print.h"

namespace mneme::jinja {
namespace {

constexpr std::int64_t kLongestRange = 100'000;  // as in jinja2's sandbox

Value range(Run& run, const Arguments& arguments) {
  const auto& p = arguments.positional;
  if (p.empty() || p.size() > 3 || !arguments.named.empty()) run.error("range: expected 1 to 3 integers");
  const auto part = [&](std::size_t i) { return expect_integer(run, p[i], "range"); };
  const std::int64_t begin = p.size() > 1 ? part(0) : 0, end = part(p.size() > 1 ? 1 : 0);
  const std::int64_t step = p.size() > 2 ? part(2) : 1;
  if (step == 0) run.error("range: the step is zero");
  std::vector<Value> items;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (std::ssize(items) == kLongestRange) run.error("range: longer than {} elements", kLongestRange);
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  run.spend_memory(items.size() * sizeof(Value));
  auto list = std::make_shared<List>();
  list->kind = List::Kind::kRange;
  list->items = std::move(items);
  list->label =
      step == 1 ? fmt::format("range({}, {})", begin, end) : fmt::format("range({}, {}, {})", begin, end, step);
  return std::shared_ptr<const List>(std::move(list));
}

// Arguments of dict(...) and namespace(...): a mapping or pairs, then names.
std::vector<std::pair<Value, Value>> pairs_of(Run& run, std::string_view name, const Arguments& arguments) {
  std::vector<std::pair<Value, Value>> items;
  if (arguments.positional.size() > 1) run.error("{}: expected at most one value without a name", name);
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.dict() != nullptr) {
      run.spend_memory(from.dict()->items.size() * 2 * sizeof(Value));
      items = from.dict()->items;
    } else {
      for_each(run, from, [&](const Value& pair) {
        const auto two = to_list(run, pair);
        if (two->items.size() != 2) run.error("{}: expected pairs, found {} elements", name, two->items.size());
        put(run, items, two->items[0], two->items[1]);
      });
    }
  }
  for (const auto& [key, value] : arguments.named) put(run, items, make_text(key), value);
  return items;
}

Value make_namespace(Run& run, const Arguments& arguments) {
  auto object = std::make_shared<Namespace>();
  run.spend_memory(sizeof(Namespace) * 2);
  run.keep(object);
  for (auto& [key, value] : pairs_of(run, "namespace", arguments))
    set_attribute(run, *object, expect_text(run, key, "namespace").view(), std::move(value));
  return object;
}

Value strftime_now(Run& run, const Arguments& arguments) {
  const Text format = expect_text(run, Parameters(run, "strftime_now", arguments, {"format"}).at(0), "strftime_now");
  if (format.size() > 200) run.error("strftime_now: a format of more than 200 bytes");
  if (format.empty()) return format;
  const std::time_t now = run.now.value_or(std::time(nullptr));
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 4096> out{};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  const std::size_t n = std::strftime(out.data(), out.size(), std::string(format.view()).c_str(), &local);
#pragma GCC diagnostic pop
  return make_text(std::string_view(out.data(), n), format.origin(0));
}

const std::vector<std::pair<std::string_view, Value>>& functions() {
  static const auto* const all = [] {
    auto* made = new std::vector<std::pair<std::string_view, Value>>;
    for (const char* name : {"range", "dict", "namespace", "raise_exception", "strftime_now"}) {
      auto callable = std::make_shared<Callable>();
      callable->name = name;
      made->emplace_back(name, std::shared_ptr<const Callable>(std::move(callable)));
    }
    return made;
  }();
  return *all;
}

}  // namespace

const Value* Arguments::named_value(std::string_view name) const {
  for (const auto& [n, v] : named)
    if (n == name) return &v;
  return nullptr;
}

Parameters::Parameters(Run& run, std::string_view function, const Arguments& arguments,
                       std::initializer_list<std::string_view> names)
    : run_(&run), function_(function), names_(names), values_(names.size()) {
  if (arguments.positional.size() > names_.size()) {
    run.error("{}: takes {} arguments, found {}", function, names_.size(), arguments.positional.size());
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto it = std::find(names_.begin(), names_.end(), name);
    if (it == names_.end()) run.error("{}: no argument '{}'", function, name);
    const Value*& slot = values_[it - names_.begin()];
    if (slot != nullptr) run.error("{}: argument '{}' is given twice", function, name);
    slot = &value;
  }
}

const Value& Parameters::at(std::size_t i) const {
  if (values_[i] == nullptr) run_->error("{}: argument '{}' is missing", function_, names_[i]);
  return *values_[i];
}

bool Parameters::flag(std::size_t i) const {
  return has(i) && truth(*values_[i]);
}

const Value* Parameters::something(std::size_t i) const {
  return has(i) && !values_[i]->is_none() ? values_[i] : nullptr;
}

const Value* find_function(std::string_view name) {
  for (const auto& [n, v] : functions())
    if (n == name) return &v;
  return nullptr;
}

Value call_function(Run& run, std::string_view name, const Arguments& arguments) {
  if (name == "range") return range(run, arguments);
  if (name == "dict") return make_dict(run, pairs_of(run, "dict", arguments));
  if (name == "namespace") return make_namespace(run, arguments);
  if (name == "strftime_now") return strftime_now(run, arguments);
  const Parameters p(run, "raise_exception", arguments, {"message"});
  const Text message = to_text(run, p.at(0));
  // The template's own message, addressed to the request's author.
  fail(ErrorKind::kRequest, "{}", message.view());
}

}  // namespace mneme::jinja
