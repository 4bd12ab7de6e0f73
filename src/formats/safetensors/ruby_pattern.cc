#include "src/formats/safetensors/ruby_pattern.h"

#include <algorithm>
#include <cctype>

namespace mneme {
namespace {

bool digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

class Reader {
 public:
  explicit Reader(std::string_view pattern) : rest_(pattern) {}

  std::optional<std::string> read(std::string& why) {
    while (!rest_.empty() && why_.empty()) next();
    why = why_;
    if (!why_.empty()) return std::nullopt;
    return lines_ ? "(?m)" + out_ : out_;
  }

 private:
  void take(std::size_t n) {
    n = std::min(n, rest_.size());
    out_ += rest_.substr(0, n);
    rest_.remove_prefix(n);
  }

  void escape() {
    const char letter = rest_.size() > 1 ? rest_[1] : '\0';
    if (letter == 'H') why_ = "\\H";
    if (letter == 'h') {
      out_ += in_class_ ? "0-9A-Fa-f" : "[0-9A-Fa-f]";
      rest_.remove_prefix(2);
      return;
    }
    // The braces of \p{N} and \x{41} are no interval.
    const bool braces = std::string_view("pPxo").find(letter) != std::string_view::npos && rest_.substr(2, 1) == "{";
    take(braces ? std::min(rest_.find('}'), rest_.size()) + 1 : 2);
  }

  void interval() {
    std::size_t end = 1;
    const auto number = [&] {
      const std::size_t begin = end;
      while (end < rest_.size() && digit(rest_[end])) ++end;
      return rest_.substr(begin, end - begin);
    };
    const std::string_view least = number();
    const bool range = rest_.substr(end, 1) == ",";
    if (range) {
      ++end;
      number();
    }
    if (rest_.substr(end, 2) != "}+") {
      // Older PCRE2 takes {,m} for text.
      if (range && least.empty() && end > 2 && rest_.substr(end, 1) == "}") out_ += "{0", rest_.remove_prefix(1);
      return take(1);
    }
    const bool none = range && (least.empty() || least == "0");
    if (least != "1" && !none) {
      why_ = rest_.substr(0, end + 2);
      return;
    }
    out_ += none ? '*' : '+';
    rest_.remove_prefix(end + 2);
  }

  void open_class() {
    if (in_class_) {
      if (rest_.substr(0, 2) == "[:") return take(std::min(rest_.find(":]"), rest_.size()) + 2);
      why_ = "a class inside a class";
      return;
    }
    in_class_ = true;
    take(rest_.substr(1, 1) == "^" ? 2 : 1);
    if (rest_.substr(0, 1) == "]") take(1);
  }

  // Ruby's m is PCRE2's s.
  void flags() {
    const std::size_t end = rest_.find_first_not_of("imx-", 2);
    if (rest_.substr(0, std::min(end, rest_.size())).find('m') != std::string_view::npos) why_ = "the flag m";
    take(2);
  }

  void next() {
    const char c = rest_.front();
    if (c == '\\') return escape();
    if (c == '[') return open_class();
    if (in_class_) {
      if (rest_.substr(0, 2) == "&&") why_ = "an intersection of classes";
      in_class_ = c != ']';
      return take(1);
    }
    if (c == '{') return interval();
    if (rest_.substr(0, 2) == "(?") return flags();
    lines_ = lines_ || c == '^' || c == '$';
    take(1);
  }

  std::string_view rest_;
  std::string out_, why_;
  bool in_class_ = false, lines_ = false;
};

}  // namespace

std::optional<std::string> pcre_of_ruby(std::string_view pattern, std::string& why) {
  return Reader(pattern).read(why);
}

}  // namespace mneme
