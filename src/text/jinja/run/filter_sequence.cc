#include <algorithm>
#include <charconv>

#include "src/text/jinja/run/filter.h"
#include "src/text/jinja/run/method.h"
#include "src/text/jinja/run/ops.h"
#include "src/text/jinja/value/print.h"

namespace mneme::jinja {
namespace {

// Attribute path: "author.name", "items.0", or one index.
class Getter {
 public:
  Getter(Run& run, const Value* path, const Value* otherwise = nullptr) : run_(&run), otherwise_(otherwise) {
    if (path == nullptr || path->is_none()) return;
    if (path->text() == nullptr) {
      parts_.push_back(*path);
      return;
    }
    std::string_view rest = path->text()->view();
    for (bool more = true; more;) {
      const std::size_t dot = rest.find('.');
      const std::string_view part = rest.substr(0, dot);
      std::int64_t index = 0;
      const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
      const bool digits = error == std::errc() && end == part.data() + part.size() && part[0] != '-';
      parts_.push_back(digits ? Value(index) : make_text(part));
      more = dot != std::string_view::npos;
      if (more) rest.remove_prefix(dot + 1);
    }
  }

  Value operator()(const Value& v) const {
    Value at = v;
    for (const Value& part : parts_) {
      at = item(*run_, at, part);
      if (otherwise_ != nullptr && !otherwise_->is_none() && at.undefined() != nullptr) at = *otherwise_;
    }
    return at;
  }

 private:
  Run* run_;
  const Value* otherwise_;
  std::vector<Value> parts_;
};

Value without_case(Run& run, const Value& v) {
  return v.text() != nullptr ? Value(lower(run, *v.text())) : v;
}

struct Keyed {
  Value key, value;
};

void sort_keyed(Run& run, std::vector<Keyed>& items, bool reverse) {
  run.spend_work(items.size());
  std::stable_sort(items.begin(), items.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? less(run, b.key, a.key) : less(run, a.key, b.key);
  });
}

Value values_of(Run& run, std::vector<Keyed> items) {
  std::vector<Value> values;
  for (Keyed& k : items) values.push_back(std::move(k.value));
  return make_list(run, std::move(values));
}

// Values that are not iterable fail; falsy ones give an empty list.
bool nothing_in(const Value& v) {
  return !truth(v);
}

Value extreme(Run& run, const Value& v, const Arguments& a, bool largest) {
  const Parameters p(run, largest ? "max" : "min", a, {"case_sensitive", "attribute"});
  const Getter getter(run, p.something(1));
  std::optional<Keyed> best;
  for_each(run, v, [&](const Value& x) {
    Value key = getter(x);
    if (!p.flag(0)) key = without_case(run, key);
    if (!best || (largest ? less(run, best->key, key) : less(run, key, best->key))) best = Keyed{std::move(key), x};
  });
  return best ? best->value : Value::undefined("No aggregated item, sequence was empty.");
}

}  // namespace

Value filter_list(Run& run, const Value& v, const Arguments& a) {
  expect_no_arguments(run, "list", a);
  return to_list(run, v);
}

Value filter_string(Run& run, const Value& v, const Arguments& a) {
  expect_no_arguments(run, "string", a);
  return to_text(run, v);
}

Value filter_length(Run& run, const Value& v, const Arguments& a) {
  expect_no_arguments(run, "length", a);
  return Value::size(length(run, v));
}

Value filter_first(Run& run, const Value& v, const Arguments& a) {
  expect_no_arguments(run, "first", a);
  const auto all = to_list(run, v);
  return all->items.empty() ? Value::undefined("No first item, sequence was empty.") : all->items.front();
}

Value filter_last(Run& run, const Value& v, const Arguments& a) {
  expect_no_arguments(run, "last", a);
  if (v.list() != nullptr && v.list()->kind == List::Kind::kGenerator) run.error("last: of a generator");
  const auto all = to_list(run, v);
  return all->items.empty() ? Value::undefined("No last item, sequence was empty.") : all->items.back();
}

Value filter_items(Run& run, const Value& v, const Arguments& a) {
  expect_no_arguments(run, "items", a);
  std::vector<Value> pairs;
  if (v.dict() != nullptr) {
    for (const auto& [key, value] : v.dict()->items) pairs.push_back(make_list(run, {key, value}, List::Kind::kTuple));
  } else if (v.undefined() == nullptr) {
    run.error("items: expected a mapping, found '{}'", v.type_name());
  }
  return make_list(run, std::move(pairs), List::Kind::kGenerator);
}

Value filter_dictsort(Run& run, const Value& v, const Arguments& a) {
  const Parameters p(run, "dictsort", a, {"case_sensitive", "by", "reverse"});
  const std::string_view by = p.has(1) ? expect_text(run, p.at(1), "by").view() : "key";
  if (by != "key" && by != "value") run.error("dictsort: you can only sort by either \"key\" or \"value\"");
  if (v.dict() == nullptr) run.error("dictsort: expected a mapping, found '{}'", v.type_name());
  std::vector<Keyed> items;
  for (const auto& [key, value] : v.dict()->items) {
    const Value& sorted_by = by == "key" ? key : value;
    items.push_back(
        {p.flag(0) ? sorted_by : without_case(run, sorted_by), make_list(run, {key, value}, List::Kind::kTuple)});
  }
  sort_keyed(run, items, p.flag(2));
  return values_of(run, std::move(items));
}

Value filter_sort(Run& run, const Value& v, const Arguments& a) {
  const Parameters p(run, "sort", a, {"reverse", "case_sensitive", "attribute"});
  std::vector<Getter> getters;
  const Value* attribute = p.something(2);
  if (attribute != nullptr && attribute->text() != nullptr) {  // several, comma-separated
    std::string_view rest = attribute->text()->view();
    for (bool more = true; more;) {
      const std::size_t comma = rest.find(',');
      const Value one = make_text(rest.substr(0, comma));
      getters.emplace_back(run, &one);
      more = comma != std::string_view::npos;
      if (more) rest.remove_prefix(comma + 1);
    }
  } else {
    getters.emplace_back(run, attribute);
  }
  std::vector<Keyed> items;
  for_each(run, v, [&](const Value& x) {
    std::vector<Value> key;
    for (const Getter& get : getters) key.push_back(p.flag(1) ? get(x) : without_case(run, get(x)));
    items.push_back({make_list(run, std::move(key)), x});
  });
  sort_keyed(run, items, p.flag(0));
  return values_of(run, std::move(items));
}

Value filter_unique(Run& run, const Value& v, const Arguments& a) {
  const Parameters p(run, "unique", a, {"case_sensitive", "attribute"});
  const Getter getter(run, p.something(1));
  std::vector<Value> seen, kept;
  for_each(run, v, [&](const Value& x) {
    Value key = getter(x);
    if (!p.flag(0)) key = without_case(run, key);
    expect_hashable(run, key);
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& s) { return equal(run, s, key); })) return;
    seen.push_back(std::move(key));
    kept.push_back(x);
  });
  return make_list(run, std::move(kept), List::Kind::kGenerator);
}

Value filter_min(Run& run, const Value& v, const Arguments& a) {
  return extreme(run, v, a, false);
}
Value filter_max(Run& run, const Value& v, const Arguments& a) {
  return extreme(run, v, a, true);
}

Value filter_sum(Run& run, const Value& v, const Arguments& a) {
  const Parameters p(run, "sum", a, {"attribute", "start"});
  const Getter getter(run, p.something(0));
  Value sum = p.or_else(1, std::int64_t{0});
  if (sum.text() != nullptr) run.error("sum: cannot sum strings");
  for_each(run, v, [&](const Value& x) { sum = add(run, sum, getter(x)); });
  return sum;
}

Value filter_join(Run& run, const Value& v, const Arguments& a) {
  const Parameters p(run, "join", a, {"d", "attribute"});
  const Getter getter(run, p.something(1));
  std::vector<Text> parts;
  for_each(run, v, [&](const Value& x) { parts.push_back(to_text(run, getter(x))); });
  return join(run, p.has(0) ? to_text(run, p.at(0)) : Text(), parts);
}

Value filter_reverse(Run& run, const Value& v, const Arguments& a) {
  expect_no_arguments(run, "reverse", a);
  if (v.text() != nullptr) return subscript_slice(run, v, None{}, None{}, std::int64_t{-1});
  auto items = to_list(run, v)->items;
  std::reverse(items.begin(), items.end());
  return make_list(run, std::move(items), List::Kind::kGenerator);
}

Value filter_map(Run& run, const Value& v, const Arguments& a) {
  std::vector<Value> out;
  if (nothing_in(v)) return make_list(run, {}, List::Kind::kGenerator);
  if (a.positional.empty() && a.named_value("attribute") != nullptr) {
    const Parameters p(run, "map", a, {"attribute", "default"});
    const Getter getter(run, p.something(0), p.something(1));
    for_each(run, v, [&](const Value& x) { out.push_back(getter(x)); });
  } else {
    if (a.positional.empty()) run.error("map: a filter's name is missing");
    const Text name = expect_text(run, a.positional[0], "map");
    const Arguments rest{{a.positional.begin() + 1, a.positional.end()}, a.named};
    for_each(run, v, [&](const Value& x) {
      const Run::RecursionGuard deeper(run);
      out.push_back(apply_filter(run, name.view(), x, rest));
    });
  }
  return make_list(run, std::move(out), List::Kind::kGenerator);
}

Value filter_select(Run& run, const Value& v, const Arguments& a, bool by_attribute, bool keep) {
  if (nothing_in(v)) return make_list(run, {}, List::Kind::kGenerator);
  const std::size_t test = by_attribute ? 1 : 0;
  if (a.positional.size() < test) run.error("selectattr: an attribute's name is missing");
  const Getter getter(run, by_attribute ? a.positional.data() : nullptr);
  const bool named = a.positional.size() > test;
  const Text name = named ? expect_text(run, a.positional[test], "select") : Text();
  Arguments rest;
  if (named) rest = {{a.positional.begin() + test + 1, a.positional.end()}, a.named};
  std::vector<Value> out;
  for_each(run, v, [&](const Value& x) {
    const Value asked = getter(x);
    if ((named ? apply_test(run, name.view(), asked, rest) : truth(asked)) == keep) out.push_back(x);
  });
  return make_list(run, std::move(out), List::Kind::kGenerator);
}

}  // namespace mneme::jinja
