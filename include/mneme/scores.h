// Log-probabilities of tokens, natural logarithms of the softmax over the whole vocabulary.
#pragma once

#include <cstdint>
#include <vector>

namespace mneme {

struct TokenLogprob {
  std::int32_t token = -1;
  float logprob = 0.0f;
};

// A token under the logits of the tokens before it, before penalties, bias, temperature and truncation.
struct TokenScore {
  std::int32_t token = -1;
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;  // the likeliest tokens in its place, the likeliest first; ties: the smaller id
};

}  // namespace mneme
