#include "src/model/architectures/architectures.h"

#include "src/base/check.h"

namespace mneme {

std::span<const Part> parts_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama:
    case Architecture::kMistral:
    case Architecture::kQwen2:
      return llama_parts();
    case Architecture::kQwen3:
      return qwen3_parts();
    case Architecture::kQwen3Moe:
      return qwen3moe_parts();
    case Architecture::kMistral3:
      return mistral3_parts();
    case Architecture::kGptOss:
      return gpt_oss_parts();
  }
  MNEME_CHECK(false, "architecture {} has no parts", static_cast<int>(architecture));
}

}  // namespace mneme
