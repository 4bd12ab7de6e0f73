// Prompts that are read once, and questions that fork from them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "src/engine/engine.h"

namespace mneme::eval {

enum class QuestionPath : std::uint8_t { kDecode, kPrefill };

struct Asked {
  RequestId id;
  std::vector<std::int32_t> tokens;  // of the answer
  bool ended = false;                // by an end token or a stop, not by its length
};

class Forks {
 public:
  Forks(Engine& engine, QuestionPath path) : engine_(engine), path_(path) {}

  // Steps until every request has ended; `after` is called behind every step.
  void finish(std::span<Asked> asked, const std::function<void()>& after = {});
  // A kept sequence of these tokens, the last `tail` of them through the method's decode path.
  RequestId compute(std::vector<std::int32_t> prompt, std::int32_t tail, std::shared_ptr<const Plan> method);
  // The document under a method, for its questions to fork from; `base` has read it exactly. A method that looks at the
  // end of a prefill has seen none of this document: the rows that it looks at are computed once more.
  RequestId prepare(RequestId base, std::span<const std::int32_t> document, std::shared_ptr<const Plan> plan);
  // A question behind the first n_document tokens of `base`; `input.prompt` is the question. By prefill, to a method
  // that looks at the prefill's end: the end is the question's, and the rows before it that count are computed once
  // more.
  RequestId ask(RequestId base, std::int32_t n_document, RequestInput input);

 private:
  Engine& engine_;
  QuestionPath path_;
};

}  // namespace mneme::eval
