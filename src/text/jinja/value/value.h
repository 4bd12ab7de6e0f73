// Template values: Python's None, bool, int (64 bits), float, str, list, tuple, dict, and jinja2's own. Lists and dicts
// are immutable, as in jinja2's immutable sandbox; only a namespace is mutable.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "src/text/jinja/value/text.h"

namespace mneme::jinja {

struct List;
struct Dict;
struct Namespace;
struct Callable;
struct Loop;

struct None {};
// A missing name or attribute; `why` is the message of using it.
struct Undefined {
  std::shared_ptr<const std::string> why;
};

class Value {
 public:
  Value() : data_(None{}) {}
  Value(None) : data_(None{}) {}                                     // NOLINT: values are made of what they hold
  Value(Undefined u) : data_(std::move(u)) {}                        // NOLINT
  Value(bool b) : data_(b) {}                                        // NOLINT
  Value(std::int64_t i) : data_(i) {}                                // NOLINT
  Value(double d) : data_(d) {}                                      // NOLINT
  Value(Text t) : data_(std::move(t)) {}                             // NOLINT
  Value(std::shared_ptr<const List> p) : data_(std::move(p)) {}      // NOLINT
  Value(std::shared_ptr<const Dict> p) : data_(std::move(p)) {}      // NOLINT
  Value(std::shared_ptr<Namespace> p) : data_(std::move(p)) {}       // NOLINT
  Value(std::shared_ptr<const Callable> p) : data_(std::move(p)) {}  // NOLINT
  Value(std::shared_ptr<Loop> p) : data_(std::move(p)) {}            // NOLINT
  Value(const char*) = delete;

  static Value undefined(std::string why) { return Undefined{std::make_shared<const std::string>(std::move(why))}; }
  static Value size(std::size_t n) { return static_cast<std::int64_t>(n); }

  bool is_none() const { return std::holds_alternative<None>(data_); }
  // Null where the value has another type.
  const Undefined* undefined() const { return std::get_if<Undefined>(&data_); }
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const std::int64_t* integer() const { return std::get_if<std::int64_t>(&data_); }
  const double* real() const { return std::get_if<double>(&data_); }
  const Text* text() const { return std::get_if<Text>(&data_); }
  const List* list() const { return pointer<const List>(); }
  const Dict* dict() const { return pointer<const Dict>(); }
  Namespace* name_space() const { return pointer<Namespace>(); }
  const Callable* callable() const { return pointer<const Callable>(); }
  Loop* loop() const { return pointer<Loop>(); }

  // Booleans are the integers 0 and 1, as in Python.
  bool is_integer() const { return integer() != nullptr || boolean() != nullptr; }
  bool is_number() const { return is_integer() || real() != nullptr; }
  std::int64_t as_integer() const { return integer() != nullptr ? *integer() : *boolean() ? 1 : 0; }
  double as_real() const { return real() != nullptr ? *real() : static_cast<double>(as_integer()); }

  // The same object, or equal for types without identity (`is sameas`).
  bool same_as(const Value& other) const;
  // Python's name of the type: "str", "dict".
  std::string_view type_name() const;

 private:
  template <typename T>
  T* pointer() const {
    const auto* p = std::get_if<std::shared_ptr<T>>(&data_);
    return p != nullptr ? p->get() : nullptr;
  }
  std::variant<None, Undefined, bool, std::int64_t, double, Text, std::shared_ptr<const List>,
               std::shared_ptr<const Dict>, std::shared_ptr<Namespace>, std::shared_ptr<const Callable>,
               std::shared_ptr<Loop>>
      data_;
};

struct List {
  enum class Kind : std::uint8_t { kList, kTuple, kGenerator, kRange, kKeys, kValues, kItems };
  Kind kind = Kind::kList;
  std::vector<Value> items;
  int nesting = 0;
  mutable bool used = false;  // of a generator: it is consumed
  std::string label;          // of a range: its repr

  bool is_sequence() const { return kind == Kind::kList || kind == Kind::kTuple || kind == Kind::kRange; }
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in the order of insertion
  int nesting = 0;

  // Null: no such key. For string keys.
  const Value* find(std::string_view key) const;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
  int nesting = 0;

  Value* find(std::string_view name);
};

struct MacroCode;

// A macro, a bound method, or a function of the environment.
struct Callable {
  enum class Kind : std::uint8_t { kMacro, kMethod, kFunction };
  Kind kind = Kind::kFunction;
  std::string name;
  Value self;                        // of a method
  const MacroCode* macro = nullptr;  // outlives the rendering
  std::shared_ptr<Scope> scope;      // scope of the macro's definition
};

// `loop` inside of a for.
struct Loop {
  std::shared_ptr<const List> items;
  std::size_t index = 0;
  std::vector<Value> last_changed;  // of loop.changed()
  bool asked_changed = false;
};

// Variables of a block; lookup continues in the parent.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string_view, Value>> names;  // keys are views of the template

  Value* find_here(std::string_view name);
  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

// Errors  kRequest: the limits of the run.
Value make_list(Run& run, std::vector<Value> items, List::Kind kind = List::Kind::kList);
Value make_dict(Run& run, std::vector<std::pair<Value, Value>> items);
Value make_text(std::string_view bytes, Origin origin = kTemplate);
void set_attribute(Run& run, Namespace& object, std::string_view name, Value value);

}  // namespace mneme::jinja
