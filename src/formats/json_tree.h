// The part that readers of JSON share: values in their places, a limit on depth, no key twice.
#pragma once

#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/text/unicode/utf8.h"

namespace mneme {

inline constexpr int kMaxJsonDepth = 64;

// Builds a value of `Tree` (nlohmann::json or ordered_json) by hand: the library's own builder checks neither depth nor
// duplicate keys. A reader adds parse_error(), and number_float() where doubles are not enough.
//
// Errors  kFormat: deeper than kMaxJsonDepth, or a key twice in one object (`name` is named).
template <typename Tree>
class JsonTree : public nlohmann::json_sax<Tree> {
 public:
  using Base = nlohmann::json_sax<Tree>;

  explicit JsonTree(std::string_view name) : name_(name) {}
  Tree take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool v) override { return put(v); }
  bool number_integer(typename Base::number_integer_t v) override { return put(v); }
  bool number_unsigned(typename Base::number_unsigned_t v) override { return put(v); }
  bool number_float(typename Base::number_float_t v, const typename Base::string_t&) override { return put(v); }
  bool string(typename Base::string_t& v) override { return put(std::move(v)); }
  bool binary(typename Base::binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Tree::object()); }
  bool start_array(std::size_t) override { return open(Tree::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(typename Base::string_t& k) override {
    const auto [it, fresh] = open_.back()->template get_ref<typename Tree::object_t&>().emplace(k, nullptr);
    if (!fresh) fail(ErrorKind::kFormat, "{}: the key '{}' occurs twice in one object", name_, utf8_prefix(k, 80));
    slot_ = &it->second;
    return true;
  }

 protected:
  std::string_view name() const { return name_; }
  bool put(Tree v) {
    place(std::move(v));
    return true;
  }

 private:
  Tree* place(Tree v) {
    if (open_.empty()) {
      root_ = std::move(v);
      return &root_;
    }
    if (open_.back()->is_array()) {
      auto& array = open_.back()->template get_ref<typename Tree::array_t&>();
      array.push_back(std::move(v));
      return &array.back();
    }
    *slot_ = std::move(v);
    return slot_;
  }
  bool open(Tree v) {
    if (std::ssize(open_) >= kMaxJsonDepth)
      fail(ErrorKind::kFormat, "{}: JSON nested deeper than {} levels", name_, kMaxJsonDepth);
    open_.push_back(place(std::move(v)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view name_;
  Tree root_;
  std::vector<Tree*> open_;  // arrays and objects; an outer one does not grow while an inner one is open
  Tree* slot_ = nullptr;     // the member of the last key
};

}  // namespace mneme
