#include "src/text/jinja/run/ops.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "src/text/jinja/run/method.h"

namespace mneme::jinja {
namespace {

[[noreturn]] void use_of(Run& run, const Undefined& u) {
  run.error("{}", *u.why);
}

void expect_defined(Run& run, const Value& v) {
  if (v.undefined() != nullptr) use_of(run, *v.undefined());
}

bool equal_lists(Run& run, const List& a, const List& b) {
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  if (a.kind == List::Kind::kGenerator) return &a == &b;
  for (std::size_t i = 0; i < a.items.size(); ++i)
    if (!equal(run, a.items[i], b.items[i])) return false;
  return true;
}

bool equal_dicts(Run& run, const Dict& a, const Dict& b) {
  if (a.items.size() != b.items.size()) return false;
  for (const auto& item : a.items) {
    const auto it =
        std::find_if(b.items.begin(), b.items.end(), [&](const auto& x) { return equal(run, x.first, item.first); });
    if (it == b.items.end() || !equal(run, it->second, item.second)) return false;
  }
  return true;
}

std::string_view element_kind(const Value& v) {
  return v.type_name();
}

// Index of an element, negative ones from the end; nothing where out of range.
std::optional<std::size_t> index_of(std::int64_t index, std::size_t size) {
  const std::int64_t n = size;
  if (index < 0) index += n;
  if (index < 0 || index >= n) return std::nullopt;
  return index;
}

Value no_item(const Value& object, const std::string& name) {
  return Value::undefined("'" + std::string(object.type_name()) + " object' has no attribute '" + name + "'");
}

std::string name_of(const Value& key) {
  if (key.text() != nullptr) return std::string(key.text()->view());
  if (key.integer() != nullptr) return std::to_string(*key.integer());
  return std::string(key.type_name());
}

}  // namespace

bool truth(const Value& v) {
  if (v.is_none() || v.undefined() != nullptr) return false;
  if (v.boolean() != nullptr) return *v.boolean();
  if (v.integer() != nullptr) return *v.integer() != 0;
  if (v.real() != nullptr) return *v.real() != 0;
  if (v.text() != nullptr) return !v.text()->empty();
  if (v.list() != nullptr) return v.list()->kind == List::Kind::kGenerator || !v.list()->items.empty();
  if (v.dict() != nullptr) return !v.dict()->items.empty();
  return true;
}

bool equal(Run& run, const Value& a, const Value& b) {
  const Run::RecursionGuard deeper(run);
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.as_integer() == b.as_integer();
    return a.as_real() == b.as_real();
  }
  if (a.undefined() != nullptr) return b.undefined() != nullptr;
  if (a.text() != nullptr && b.text() != nullptr) {
    const std::string_view x = a.text()->view(), y = b.text()->view();
    if (x.size() == y.size()) run.spend_work(x.size() / 64);
    return x == y;
  }
  if (a.list() != nullptr && b.list() != nullptr) return equal_lists(run, *a.list(), *b.list());
  if (a.dict() != nullptr && b.dict() != nullptr) return equal_dicts(run, *a.dict(), *b.dict());
  return a.same_as(b);
}

bool less(Run& run, const Value& a, const Value& b) {
  const Run::RecursionGuard deeper(run);
  expect_defined(run, a);
  expect_defined(run, b);
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.as_integer() < b.as_integer();
    return a.as_real() < b.as_real();
  }
  if (a.text() != nullptr && b.text() != nullptr) {
    run.spend_work(std::min(a.text()->size(), b.text()->size()) / 64);
    return a.text()->view() < b.text()->view();  // UTF-8 order is code point order
  }
  if (a.list() != nullptr && b.list() != nullptr && a.list()->kind == b.list()->kind &&
      (a.list()->kind == List::Kind::kList || a.list()->kind == List::Kind::kTuple)) {
    const auto &x = a.list()->items, &y = b.list()->items;
    for (std::size_t i = 0; i < x.size() && i < y.size(); ++i)
      if (!equal(run, x[i], y[i])) return less(run, x[i], y[i]);
    return x.size() < y.size();
  }
  run.error("'<' is not supported between '{}' and '{}'", a.type_name(), b.type_name());
}

bool contains(Run& run, const Value& container, const Value& item) {
  if (const Text* text = container.text()) {
    if (item.text() == nullptr) run.error("'in <string>' needs a string, not '{}'", item.type_name());
    run.spend_work(text->size() / 16);
    return text->view().find(item.text()->view()) != std::string_view::npos;
  }
  if (const Dict* dict = container.dict()) {
    expect_hashable(run, item);
    return std::any_of(dict->items.begin(), dict->items.end(),
                       [&](const auto& x) { return equal(run, x.first, item); });
  }
  const std::shared_ptr<const List> all = to_list(run, container);
  return std::any_of(all->items.begin(), all->items.end(), [&](const Value& x) { return equal(run, x, item); });
}

void for_each(Run& run, const Value& v, FunctionRef<void(const Value&)> element) {
  if (v.undefined() != nullptr) return;
  if (const List* list = v.list()) {
    if (list->kind == List::Kind::kGenerator && list->used) return;
    if (list->kind == List::Kind::kGenerator) list->used = true;
    run.spend_work(list->items.size());
    for (const Value& x : list->items) element(x);
  } else if (const Dict* dict = v.dict()) {
    run.spend_work(dict->items.size());
    for (const auto& x : dict->items) element(x.first);
  } else if (const Text* text = v.text()) {
    for (std::size_t at = 0; at < text->size();) {
      const std::size_t n = character_length(text->view().substr(at));
      element(slice(run, *text, at, at + n));
      at += n;
    }
  } else if (const Loop* loop = v.loop()) {
    for (std::size_t i = loop->index + 1; i < loop->items->items.size(); ++i) element(loop->items->items[i]);
  } else {
    run.error("'{}' is not iterable", element_kind(v));
  }
}

std::shared_ptr<const List> to_list(Run& run, const Value& v) {
  std::vector<Value> items;
  if (v.list() != nullptr) run.spend_memory(v.list()->items.size() * sizeof(Value));
  for_each(run, v, [&](const Value& x) {
    run.spend_memory(sizeof(Value));
    items.push_back(x);
  });
  auto list = std::make_shared<List>();
  list->items = std::move(items);
  if (v.list() != nullptr) list->nesting = v.list()->nesting;
  if (v.dict() != nullptr) list->nesting = v.dict()->nesting;
  return list;
}

bool is_iterable(const Value& v) {
  return v.undefined() != nullptr || v.list() != nullptr || v.dict() != nullptr || v.text() != nullptr ||
         v.loop() != nullptr;
}

std::size_t length(Run& run, const Value& v) {
  if (v.undefined() != nullptr) return 0;
  if (v.text() != nullptr) {
    run.spend_work(v.text()->size() / 64);
    return count_characters(v.text()->view());
  }
  if (v.dict() != nullptr) return v.dict()->items.size();
  if (v.loop() != nullptr) return v.loop()->items->items.size();
  if (v.list() != nullptr && v.list()->kind != List::Kind::kGenerator) return v.list()->items.size();
  run.error("'{}' has no length", v.type_name());
}

Value item(Run& run, const Value& object, const Value& key) {
  expect_defined(run, object);
  if (const Dict* dict = object.dict()) {
    run.spend_work(1 + dict->items.size() / 4);
    if (key.text() != nullptr) {
      if (const Value* v = dict->find(key.text()->view())) return *v;
    } else if (key.list() == nullptr || key.list()->kind == List::Kind::kTuple) {
      for (const auto& [k, v] : dict->items)
        if (equal(run, k, key)) return v;
    }
  } else if (key.is_integer()) {
    if (object.list() != nullptr && object.list()->is_sequence()) {
      if (const auto i = index_of(key.as_integer(), object.list()->items.size())) return object.list()->items[*i];
    } else if (const Text* text = object.text()) {
      if (const auto i = index_of(key.as_integer(), length(run, object))) {
        const std::size_t at = byte_of_character(text->view(), *i);
        return slice(run, *text, at, at + character_length(text->view().substr(at)));
      }
    }
    return no_item(object, name_of(key));
  }
  if (key.text() != nullptr) {
    Value own = own_attribute(object, key.text()->view());
    if (own.undefined() == nullptr || own.undefined()->why != nullptr) return own;
  }
  return no_item(object, name_of(key));
}

Value attribute(Run& run, const Value& object, std::string_view name) {
  expect_defined(run, object);
  Value own = own_attribute(object, name);
  if (own.undefined() == nullptr || own.undefined()->why != nullptr) return own;
  if (object.dict() != nullptr)
    if (const Value* v = object.dict()->find(name)) return *v;
  return no_item(object, std::string(name));
}

Value subscript_slice(Run& run, const Value& object, const Value& begin, const Value& end, const Value& step) {
  expect_defined(run, object);
  const bool sequence = object.list() != nullptr && object.list()->is_sequence();
  if (!sequence && object.text() == nullptr) run.error("'{}' cannot be sliced", object.type_name());
  const std::int64_t n = length(run, object);
  const auto part = [&](const Value& v, std::int64_t otherwise) {
    return v.is_none() ? otherwise : expect_integer(run, v, "a slice's bound");
  };
  const std::int64_t by = part(step, 1);
  if (by == 0) run.error("a slice's step is zero");
  const std::int64_t low = by > 0 ? 0 : -1, high = by > 0 ? n : n - 1;
  const auto bound = [&](const Value& v, std::int64_t otherwise) {
    if (v.is_none()) return otherwise;
    const std::int64_t at = part(v, 0);
    return std::clamp(at < 0 ? at + n : at, low, high);
  };
  const std::int64_t from = bound(begin, by > 0 ? low : high), to = bound(end, by > 0 ? high : low);
  if (const Text* text = object.text()) {
    if (by == 1) {
      const std::size_t first = byte_of_character(text->view(), from);
      const std::size_t last = byte_of_character(text->view(), to);
      return slice(run, *text, first, std::max(first, last));
    }
    std::vector<std::size_t> starts;
    run.spend_memory(text->size() * sizeof(std::size_t));
    for (std::size_t at = 0; at < text->size(); at += character_length(text->view().substr(at))) starts.push_back(at);
    TextBuilder out(run);
    for (std::int64_t i = from; by > 0 ? i < to : i > to;) {
      const std::size_t at = starts[i];
      out.add(*text, at, at + character_length(text->view().substr(at)));
      if (__builtin_add_overflow(i, by, &i)) break;
    }
    return out.finish();
  }
  std::vector<Value> items;
  for (std::int64_t i = from; by > 0 ? i < to : i > to;) {
    items.push_back(object.list()->items[i]);
    run.spend_memory(sizeof(Value));
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  return make_list(run, std::move(items), object.list()->kind);
}

std::int64_t expect_integer(Run& run, const Value& v, std::string_view what) {
  expect_defined(run, v);
  if (!v.is_integer()) run.error("{}: expected an integer, found '{}'", what, v.type_name());
  return v.as_integer();
}

const Text& expect_text(Run& run, const Value& v, std::string_view what) {
  expect_defined(run, v);
  if (v.text() == nullptr) run.error("{}: expected a string, found '{}'", what, v.type_name());
  return *v.text();
}

void expect_hashable(Run& run, const Value& v) {
  const Run::RecursionGuard deeper(run);
  if (v.dict() != nullptr || (v.list() != nullptr && v.list()->kind == List::Kind::kList))
    run.error("unhashable type: '{}'", v.type_name());
  if (v.list() != nullptr && v.list()->kind == List::Kind::kTuple)
    for (const Value& x : v.list()->items) expect_hashable(run, x);
}

void put(Run& run, std::vector<std::pair<Value, Value>>& items, Value key, Value value) {
  expect_hashable(run, key);
  for (auto& [k, v] : items) {
    if (equal(run, k, key)) {
      v = std::move(value);
      return;
    }
  }
  items.emplace_back(std::move(key), std::move(value));
}

}  // namespace mneme::jinja
