// Chat templates: the subset of jinja2 that models use, rendered as Python's jinja2 does in transformers' environment
// (immutable sandbox, trim_blocks, lstrip_blocks, its tojson). docs/design/jinja.md lists what is supported and
// what differs.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/text/jinja/value/value.h"

namespace mneme::jinja {

struct Stmt;

// Immutable after construction: any number of threads may render it.
class Template {
 public:
  // Errors  kFormat: not a template that can be parsed; the message has the line.
  explicit Template(std::string_view source);

  struct Input {
    std::vector<std::pair<std::string, Value>> names;
    Limits limits;
    std::optional<std::time_t> now;    // for strftime_now(); absent: the current time
    std::string* undefined = nullptr;  // set to the first undefined expression that is written: "m.contnt"
  };
  // Errors  kRequest: raise_exception (only its message), anything that Python would raise, a limit; with the line.
  Text render(const Input& input) const;

 private:
  std::shared_ptr<const std::vector<Stmt>> body_;
};

}  // namespace mneme::jinja
