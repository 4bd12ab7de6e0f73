#include "src/text/jinja/value/value.h"

#include <algorithm>

namespace mneme::jinja {
namespace {

int nesting_of(const Value& v) {
  if (v.list() != nullptr) return v.list()->nesting + 1;
  if (v.dict() != nullptr) return v.dict()->nesting + 1;
  if (v.name_space() != nullptr) return v.name_space()->nesting + 1;
  return v.callable() != nullptr && v.callable()->kind == Callable::Kind::kMethod ? nesting_of(v.callable()->self) + 1
                                                                                  : 0;
}

int checked_nesting(Run& run, int nesting) {
  if (nesting > run.limits().nesting) run.error("values nest too deeply");
  return nesting;
}

}  // namespace

// Lists and names are moved out before anything is destroyed: objects may form cycles and long chains.
Run::~Run() {
  std::vector<Value> values;
  for (const auto& n : namespaces_) {
    for (auto& [name, value] : n->attributes) values.push_back(std::move(value));
    n->attributes.clear();
  }
  for (const auto& s : scopes_) {
    for (auto& [name, value] : s->names) values.push_back(std::move(value));
    s->names.clear();
  }
}

bool Value::same_as(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (is_none()) return true;
  if (boolean() != nullptr) return *boolean() == *other.boolean();
  if (integer() != nullptr) return *integer() == *other.integer();
  if (text() != nullptr) return text()->view() == other.text()->view();
  if (list() != nullptr) return list() == other.list();
  if (dict() != nullptr) return dict() == other.dict();
  if (name_space() != nullptr) return name_space() == other.name_space();
  if (callable() != nullptr) return callable() == other.callable();
  return loop() != nullptr && loop() == other.loop();
}

std::string_view Value::type_name() const {
  if (is_none()) return "NoneType";
  if (undefined() != nullptr) return "Undefined";
  if (boolean() != nullptr) return "bool";
  if (integer() != nullptr) return "int";
  if (real() != nullptr) return "float";
  if (text() != nullptr) return "str";
  if (dict() != nullptr) return "dict";
  if (name_space() != nullptr) return "namespace";
  if (callable() != nullptr) return "function";
  if (loop() != nullptr) return "loop";
  switch (list()->kind) {
    case List::Kind::kList:
      return "list";
    case List::Kind::kTuple:
      return "tuple";
    case List::Kind::kGenerator:
      return "generator";
    case List::Kind::kRange:
      return "range";
    case List::Kind::kKeys:
      return "dict_keys";
    case List::Kind::kValues:
      return "dict_values";
    case List::Kind::kItems:
      return "dict_items";
  }
  return "list";
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [k, v] : items)
    if (k.text() != nullptr && k.text()->view() == key) return &v;
  return nullptr;
}

Value* Namespace::find(std::string_view name) {
  for (auto& [n, v] : attributes)
    if (n == name) return &v;
  return nullptr;
}

Value* Scope::find_here(std::string_view name) {
  for (auto& [n, v] : names)
    if (n == name) return &v;
  return nullptr;
}

const Value* Scope::find(std::string_view name) const {
  for (const Scope* s = this; s != nullptr; s = s->parent.get()) {
    for (const auto& [n, v] : s->names)
      if (n == name) return &v;
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  if (Value* v = find_here(name)) {
    *v = std::move(value);
  } else {
    names.emplace_back(name, std::move(value));
  }
}

Value make_list(Run& run, std::vector<Value> items, List::Kind kind) {
  run.spend_work(1 + items.size() / 4);
  run.spend_memory(sizeof(List) + items.size() * sizeof(Value));
  int nesting = 0;
  for (const Value& v : items) nesting = std::max(nesting, nesting_of(v));
  auto list = std::make_shared<List>();
  list->kind = kind;
  list->items = std::move(items);
  list->nesting = checked_nesting(run, nesting);
  return std::shared_ptr<const List>(std::move(list));
}

Value make_dict(Run& run, std::vector<std::pair<Value, Value>> items) {
  run.spend_work(1 + items.size() / 4);
  run.spend_memory(sizeof(Dict) + items.size() * 2 * sizeof(Value));
  int nesting = 0;
  for (const auto& [k, v] : items) nesting = std::max({nesting, nesting_of(k), nesting_of(v)});
  auto dict = std::make_shared<Dict>();
  dict->items = std::move(items);
  dict->nesting = checked_nesting(run, nesting);
  return std::shared_ptr<const Dict>(std::move(dict));
}

Value make_text(std::string_view bytes, Origin origin) {
  return Text(std::string(bytes), origin);
}

void set_attribute(Run& run, Namespace& object, std::string_view name, Value value) {
  run.spend_memory(sizeof(Value) + name.size());
  const int nesting = nesting_of(value);
  // Storing an object in itself does not change its depth.
  if (nesting > object.nesting && value.name_space() != &object) object.nesting = checked_nesting(run, nesting);
  if (Value* v = object.find(name)) {
    *v = std::move(value);
  } else {
    object.attributes.emplace_back(std::string(name), std::move(value));
  }
}

}  // namespace mneme::jinja
