// Chat templates: the part of jinja2 that models use, rendered as Python's jinja2 does in the environment that
// transformers sets up (immutable sandbox, trim_blocks, lstrip_blocks, its tojson). docs/chat-templates.md says what is
// there and what differs.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/tokenizer/jinja_value.h"

namespace mneme::jinja {

struct Stmt;

// Immutable once made: any number of threads may render it.
class Template {
 public:
  // Errors  kFormat: not a template that can be read; the message names the line.
  explicit Template(std::string_view source);

  struct Input {
    std::vector<std::pair<std::string, Value>> names;
    Limits limits;
    std::optional<std::time_t> now;  // what strftime_now() says; absent: the clock's
  };
  // Errors  kRequest: raise_exception (its message alone), anything that Python would raise, a limit; with the line.
  Text render(const Input& input) const;

 private:
  std::shared_ptr<const std::vector<Stmt>> body_;
};

}  // namespace mneme::jinja
