#include "src/text/jinja/run/method.h"

#include <algorithm>
#include <array>

#include "src/text/jinja/run/ops.h"
#include "src/text/unicode/unicode_case.h"

namespace mneme::jinja {
namespace {

template <std::size_t N>
bool is_one_of(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr std::array<std::string_view, 3> kListMethods = {"count", "index", "copy"};
constexpr std::array<std::string_view, 8> kListForbidden = {"append", "clear", "pop",    "reverse",
                                                            "insert", "sort",  "extend", "remove"};
constexpr std::array<std::string_view, 5> kDictMethods = {"copy", "get", "items", "keys", "values"};
constexpr std::array<std::string_view, 5> kDictForbidden = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::array<std::string_view, 2> kLoopMethods = {"cycle", "changed"};

Value method(const Value& self, std::string_view name) {
  auto callable = std::make_shared<Callable>();
  callable->kind = Callable::Kind::kMethod;
  callable->name = std::string(name);
  callable->self = self;
  return std::shared_ptr<const Callable>(std::move(callable));
}

// Using it fails; printing it, or testing whether it is defined, does not.
Value forbidden(const Value& object, std::string_view name) {
  return Value::undefined(fmt::format("access to attribute '{}' of '{}' object is unsafe", name, object.type_name()));
}

Value loop_attribute(const Value& object, std::string_view name) {
  const Loop& loop = *object.loop();
  const auto& items = loop.items->items;
  if (name == "index") return Value::size(loop.index + 1);
  if (name == "index0") return Value::size(loop.index);
  if (name == "revindex") return Value::size(items.size() - loop.index);
  if (name == "revindex0") return Value::size(items.size() - loop.index - 1);
  if (name == "first") return loop.index == 0;
  if (name == "last") return loop.index + 1 == items.size();
  if (name == "length") return Value::size(items.size());
  if (name == "depth") return std::int64_t{1};
  if (name == "depth0") return std::int64_t{0};
  if (name == "previtem" && loop.index > 0) return items[loop.index - 1];
  if (name == "nextitem" && loop.index + 1 < items.size()) return items[loop.index + 1];
  if (is_one_of(kLoopMethods, name)) return method(object, name);
  return Value::undefined("'loop' has no attribute '" + std::string(name) + "'");
}

Value list_of_pairs(Run& run, const Dict& dict) {
  std::vector<Value> items;
  for (const auto& [k, v] : dict.items) items.push_back(make_list(run, {k, v}, List::Kind::kTuple));
  return make_list(run, std::move(items), List::Kind::kItems);
}

Value call_dict(Run& run, const Value& self, std::string_view name, const Arguments& arguments) {
  const Dict& dict = *self.dict();
  if (name == "get") {
    const Parameters p(run, "get", arguments, {"key", "default"});
    expect_hashable(run, p.at(0));
    run.spend_work(1 + dict.items.size() / 4);
    for (const auto& [k, v] : dict.items)
      if (equal(run, k, p.at(0))) return v;
    return p.or_else(1, None{});
  }
  expect_no_arguments(run, name, arguments);
  if (name == "copy") return self;
  if (name == "items") return list_of_pairs(run, dict);
  std::vector<Value> items;
  for (const auto& [k, v] : dict.items) items.push_back(name == "keys" ? k : v);
  return make_list(run, std::move(items), name == "keys" ? List::Kind::kKeys : List::Kind::kValues);
}

Value call_list(Run& run, const Value& self, std::string_view name, const Arguments& arguments) {
  const auto& items = self.list()->items;
  if (name == "copy") {
    expect_no_arguments(run, name, arguments);
    return make_list(run, items);
  }
  const Parameters p(run, name, arguments, {"value"});
  std::size_t n = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!equal(run, items[i], p.at(0))) continue;
    if (name == "index") return Value::size(i);
    ++n;
  }
  if (name == "index") run.error("index: the value is not in the list");
  return Value::size(n);
}

Value call_loop(Run& run, const Value& self, std::string_view name, const Arguments& arguments) {
  Loop& loop = *self.loop();
  if (!arguments.named.empty()) run.error("loop.{}: named arguments", name);
  if (name == "cycle") {
    if (arguments.positional.empty()) run.error("no items for cycling given");
    return arguments.positional[loop.index % arguments.positional.size()];
  }
  const auto same = [&] {
    return std::equal(arguments.positional.begin(), arguments.positional.end(), loop.last_changed.begin(),
                      loop.last_changed.end(), [&](const Value& a, const Value& b) { return equal(run, a, b); });
  };
  if (loop.asked_changed && same()) return false;
  loop.asked_changed = true;
  loop.last_changed = arguments.positional;
  return true;
}

}  // namespace

Value own_attribute(const Value& object, std::string_view name) {
  if (name.starts_with("__") && name.ends_with("__") && name.size() > 4) return forbidden(object, name);
  if (object.text() != nullptr && is_text_method(name)) return method(object, name);
  if (object.dict() != nullptr) {
    if (is_one_of(kDictForbidden, name)) return forbidden(object, name);
    if (is_one_of(kDictMethods, name)) return method(object, name);
  } else if (object.list() != nullptr && object.list()->is_sequence()) {
    const bool list = object.list()->kind == List::Kind::kList;
    if (list && is_one_of(kListForbidden, name)) return forbidden(object, name);
    if (is_one_of(kListMethods, name) && (list || name != "copy")) return method(object, name);
  } else if (object.name_space() != nullptr) {
    if (name.starts_with("_")) return forbidden(object, name);
    if (const Value* v = object.name_space()->find(name)) return *v;
  } else if (object.loop() != nullptr) {
    return loop_attribute(object, name);
  } else if (object.callable() != nullptr && object.callable()->kind == Callable::Kind::kMacro && name == "name") {
    return make_text(object.callable()->name);
  }
  return Undefined{};
}

Value call_method(Run& run, const Value& self, std::string_view name, const Arguments& arguments) {
  if (self.text() != nullptr) return call_text_method(run, *self.text(), name, arguments);
  if (self.dict() != nullptr) return call_dict(run, self, name, arguments);
  if (self.list() != nullptr) return call_list(run, self, name, arguments);
  return call_loop(run, self, name, arguments);
}

Text strip(Run& run, const Text& text, const Value* characters, bool left, bool right) {
  const std::string_view bytes = text.view();
  run.spend_work(bytes.size() / 64);
  const std::string_view set = characters != nullptr ? expect_text(run, *characters, "strip").view() : "";
  const auto goes = [&](std::size_t at) {
    if (characters == nullptr) return unicode::is_space(character_at(bytes, at));
    return set.find(bytes.substr(at, character_length(bytes.substr(at)))) != std::string_view::npos;
  };
  std::size_t begin = 0, end = bytes.size();
  while (left && begin < end && goes(begin)) begin += character_length(bytes.substr(begin));
  while (right && begin < end) {
    std::size_t at = end - 1;
    while (at > begin && (bytes[at] & 0xC0) == 0x80) --at;
    if (!goes(at)) break;
    end = at;
  }
  return slice(run, text, begin, end);
}

Text replace(Run& run, const Text& text, const Text& from, const Text& to, std::int64_t count) {
  const std::string_view bytes = text.view();
  run.spend_work(bytes.size() / 16);
  TextBuilder out(run);
  std::size_t at = 0;
  if (from.empty()) {  // before every character, and at the end
    for (; count > 0; --count) {
      out.add(to);
      if (at >= bytes.size()) break;
      const std::size_t n = character_length(bytes.substr(at));
      out.add(text, at, at + n);
      at += n;
    }
    out.add(text, at, bytes.size());
    return out.finish();
  }
  for (std::size_t hit; count > 0 && (hit = bytes.find(from.view(), at)) != std::string_view::npos; --count) {
    out.add(text, at, hit);
    out.add(to);
    at = hit + from.size();
  }
  out.add(text, at, bytes.size());
  return out.finish();
}

Text join(Run& run, const Text& between, const std::vector<Text>& parts) {
  TextBuilder out(run);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out.add(between);
    out.add(parts[i]);
  }
  return out.finish();
}

Value split_lines(Run& run, const Text& text, bool keep_ends) {
  const std::string_view bytes = text.view();
  run.spend_work(bytes.size() / 8);
  std::vector<Value> lines;
  std::size_t from = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t n = character_length(bytes.substr(at));
    if (!unicode::is_line_end(character_at(bytes, at))) {
      at += n;
      continue;
    }
    const std::size_t end = at + (bytes[at] == '\r' && bytes.substr(at + 1).starts_with("\n") ? 2 : n);
    lines.emplace_back(slice(run, text, from, keep_ends ? end : at));
    from = at = end;
  }
  if (from < bytes.size()) lines.emplace_back(slice(run, text, from, bytes.size()));
  return make_list(run, std::move(lines));
}

}  // namespace mneme::jinja
